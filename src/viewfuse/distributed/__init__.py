"""Data that outgrow one process: labels of many files, and one model that several processes train on shards.

The way of the rows: `shards` reads Parquet files; `first_pass` writes their rows to buckets, by the hash of their ids;
`training` has what the network sees of them, says who learns from which and when, and learns; `fit_large` does it all.
"""
