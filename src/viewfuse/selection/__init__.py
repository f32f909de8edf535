"""What is decided without labels, in the order in which the data go through it.

`kmeans` makes small clusters of an embedding, which `linkage` joins; `split_evidence` measures what
speaks for a division of the tree, and `split_tree` says which stand and how many clusters there are. `scores`
measures partitions by neighbours, and `rules` chooses among them; `confidence` says how sure each sample is, and
`rules` what that is worth. All of it is data, `decisions`, which `decision_texts` puts in words.
"""
