"""Data sets and jobs that outgrow one process: sharded Parquet files, and one model trained by several processes."""
