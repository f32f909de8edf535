"""Files: readers, writers, and what keeps bad files from doing harm.

`read_views`, `read_chunks` and `open_source` of `io.readers` are for others; writers are in `io.writers`. A value of a
file is a cell (`readers`), a number of a `FileView`, of a row that is joined by its id (`FileSource`), and of `Views`.
"""
