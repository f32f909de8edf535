"""What is decided without labels, in the order in which the data go through it.

`kmeans` makes small clusters of an embedding, which `tree` joins; `splits` tests where the tree divides, and
`split_tests` says how many clusters there are. `scores` measures partitions by neighbours, and `rules` chooses among
them; `confidence` says how sure each sample is, and `rules` what that is worth. All of it is data, `decisions`, which
`messages` puts in words.
"""
