"""Rows of sharded data sets: read a few at a time, put into an order that no shard tells, and made ready to learn from.

The way of the data: `shards` reads Parquet files; `pass_zero` writes their rows to `row_buckets`, by the hash of their
ids (`id_hash`); `prepared_rows` are what the network sees of them, and say who learns from which, and when.
"""
