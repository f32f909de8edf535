"""`python -m viewfuse`: the command line, where its folder is not on the path."""

from viewfuse.cli import main

if __name__ == "__main__":
    main()
