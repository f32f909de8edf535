"""Files that native libraries read are parsed in a process of their own, which may crash, stall or use too much memory.

`client.read_isolated` asks for it; `server` is the process that is asked, and forks one process per file; `jobs` says
what is asked for, `limits` what a file may cost, `results` how arrays come back: memory-mapped, never pickled.
"""
