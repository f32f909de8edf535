"""Data that outgrow one process: labels of many files, and one model that several processes train on shards."""
