"""Data that outgrow one process: labels of many files, and one model that several processes train on shards.

The way of the rows: `shards` reads Parquet files; `pass_zero` writes their rows to `row_buckets`, by the hash of their
ids; `prepared_rows` are what the network sees of them, and say who learns from which, and when.
"""
