"""Files that native libraries read are parsed in a process of their own, which may crash, stall or use too much memory.

`client.read_isolated` asks for it; `process` starts the one that is asked, `server`, which forks one process per file;
`jobs` says what is asked for, what a file may cost, and how arrays come back: memory-mapped, never pickled.
"""
