"""What is decided without labels: scores of partitions, the rules that use them, and the words that tell it.

`scores` measure, `rules` choose, `messages` tell; `kmeans` places the centres that the joint stage begins with, and
finds clusters of filled views; `teaching` gives these to a network, `confidence` is measured against them;
`tree` joins small clusters, `splits` tests where the tree divides, `cluster_number` says how many clusters there are.
"""
