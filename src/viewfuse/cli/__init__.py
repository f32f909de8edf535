"""The command line: one file per verb."""

from __future__ import annotations

import functools
import importlib
import os
import sys
import warnings
from typing import Any

import click

from viewfuse import __version__
from viewfuse.cli import options
from viewfuse.errors import ViewfuseError

VERBS = {
    "bench": "Measure speed, or run the paper's tables and figures.",
    "embed": "Write the embeddings of samples under a saved model.",
    "explain": "Say why a saved model places the samples of files where it does.",
    "fit": "Cluster the samples of one or more files.",
    "impute": "Fill missing views with what a saved model expects there.",
    "info": "Say what a saved model is.",
    "inspect": "Say what is in files and what is missing, before any training.",
    "predict": "Place the samples of files in the clusters of a saved model.",
    "score": "Compare labels with known ones.",
}


class Verbs(click.Group):
    """Verbs are imported when they are called, so that --help is quick; errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order of the alphabet."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb `cmd_name`."""
        if cmd_name not in VERBS:
            return None
        if ctx.resilient_parsing or "--help" not in sys.argv[1:2]:
            command: click.Command = importlib.import_module(f"viewfuse.cli.{cmd_name}").command
            command.help = VERBS[cmd_name]
            return command
        return click.Command(cmd_name, help=VERBS[cmd_name])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; what is wrong with data, settings or files is said in one line, with exit code 2."""
        _shorten_waits()
        try:
            with warnings.catch_warnings():
                warnings.showwarning = functools.partial(_show_warning, set())
                return super().invoke(ctx)
        except ViewfuseError as error:
            click.echo(f"viewfuse: {options.plain(error)}", err=True)
            sys.exit(2)
        except OSError as error:  # of the system's own, such as a name that is too long
            click.echo(f"viewfuse: {options.plain(error)}; check the path and its permissions", err=True)
            sys.exit(2)
        except KeyboardInterrupt:
            click.echo("viewfuse: interrupted", err=True)
            sys.exit(130)


def _shorten_waits() -> None:
    """Let idle threads sleep soon; it must be said before torch makes them.

    Threads that wait actively for long come to a standstill as soon as another program wants one of their cores:
    training was a hundred times slower beside a busy process. A short wait costs little where nothing else runs.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")


def _show_warning(shown: set[str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning once, however many parts of the samples it is about."""
    if str(message) not in shown:
        shown.add(str(message))
        click.echo(f"viewfuse: warning: {options.plain(message)}", err=True)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="viewfuse")
def main() -> None:
    """Cluster samples described by several views when some views of some samples are missing."""
