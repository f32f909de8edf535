"""What is decided without labels: scores of partitions, the rules that use them, and the words that tell it.

`scores` measure, `rules` choose, `messages` tell; `centers` places the centres that the joint stage begins with;
`filled_kmeans` is a simple method's partition, `teaching` gives it to a network, `confidence` is measured against it.
"""
