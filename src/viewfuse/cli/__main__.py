"""python -m viewfuse.cli."""

from viewfuse.cli import main

main()
