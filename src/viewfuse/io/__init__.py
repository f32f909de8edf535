"""Files: readers, writers, and what keeps bad files from doing harm.

`read_views`, `read_chunks` and `open_source` of `io.readers` are for others; writers are in `io.writers`.
"""
