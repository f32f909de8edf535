"""The command line, as `viewfuse` and as `python -m viewfuse`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while its modules are imported is one line, too."""
    try:
        from viewfuse.cli import main as run
    except KeyboardInterrupt:
        sys.stderr.write("viewfuse: interrupted\n")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
