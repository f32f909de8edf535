"""The command line: one file per verb, or per few that belong together."""

from __future__ import annotations

import atexit
import errno
import functools
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

import click

from viewfuse.errors import ViewfuseError
from viewfuse.io.isolated import process
from viewfuse.utils.console import plain, tell
from viewfuse.utils.memory import check_address_space, memory_errors
from viewfuse.utils.settings import spelled
from viewfuse.utils.version import __version__

VERBS = {
    "fit": "Cluster the samples of one or more files.",
    "predict": "Place the samples of files in the clusters of a saved model.",
    "report": "Write a page that shows a run, or compares two.",
    "compare": "Fit several methods on the same data, and say which is better.",
    "inspect": "Say what is in files and what is missing, before any training.",
    "serve": "Answer requests over HTTP with a saved model.",
}
"""Those that a newcomer needs."""
MORE = {
    "choose": "Say how many clusters the samples of files have, without a fit.",
    "drift": "Say whether the samples of files are like those that a run was fitted on.",
    "embed": "Write the embeddings of samples under a saved model.",
    "explain": "Say why a saved model places the samples of files where it does.",
    "fit-large": "Cluster the rows of sharded Parquet files, in one or many processes.",
    "impute": "Fill missing views with what a saved model expects there.",
    "info": "Say what a saved model is.",
    "rename": "Name the clusters of a run: a CSV file has the columns label and name.",
    "score": "Compare labels with known ones.",
    "update": "Let new samples join a run, whose clusters keep their numbers.",
    "validate": "Repeat the fit of a run, and measure how often its clusters are found again.",
}
_TOGETHER = {
    "inspect": ("choose",),
    "later": ("drift", "rename", "update", "validate"),
    "predict": ("embed", "explain", "impute", "info", "score"),
}
"""Verbs that share a module, in which their functions are called like them."""
_VERB, _TERMINATED = "viewfuse.verb", "viewfuse.terminated"


class Verbs(click.Group):
    """Verbs are imported when they are called, so that --help is quick; errors are one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, those that a newcomer needs first."""
        return [*VERBS, *MORE]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs in two parts."""
        for title, verbs in {"Commands": VERBS, "More": MORE}.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()), col_max=15)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb `cmd_name`."""
        if cmd_name == "bench":
            ctx.fail("Benchmarks are not in the package; in a checkout, run python -m benchmarks")
        known = VERBS | MORE
        if cmd_name not in known:
            return None
        if ctx.resilient_parsing or "--help" not in sys.argv[1:2]:
            module = next((one for one, verbs in _TOGETHER.items() if cmd_name in verbs), None)
            found = importlib.import_module(f"viewfuse.cli.{module or cmd_name.replace('-', '_')}")
            command: click.Command = getattr(found, cmd_name if module else "command")
            command.help = known[cmd_name]
            return command
        return click.Command(cmd_name, help=known[cmd_name])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[Any, Any, list[str]]:
        """The verb that is asked for, which errors and warnings will speak of."""
        endings = {os.path.splitext(word)[1].lower() for word in args} & set(process.ENDINGS)
        if endings and "--trusted" not in args and "fit-large" not in args[:1]:
            process.start(sorted(endings))  # what reads files starts while the verb is imported
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[_VERB] = command
        return name, command, rest

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """What stands before the verb."""
        ctx.obj = tuple(args)
        with _faults_in_one_line(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a verb; what is wrong with data, settings or files is said in one line, with exit code 2."""
        _shorten_waits()
        os.environ["MPLBACKEND"] = "Agg"  # matplotlib cannot even be imported under the name of one that is not there
        with _faults_in_one_line(ctx), _ended_tidily(ctx), warnings.catch_warnings():
            warnings.showwarning = functools.partial(_show_warning, ctx, set())
            return super().invoke(ctx)


@contextmanager
def _ended_tidily(ctx: click.Context) -> Iterator[None]:
    """SIGTERM, as cluster schedulers send it, ends a verb as Ctrl-C does, with exit code 143; a second one at once.

    Ctrl-C while Python itself ends, when nothing is left to be done, says nothing more.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    atexit.unregister(_end_at_once)
    atexit.register(_end_at_once)  # as the last one, so that it is the first to be called

    def terminated(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctx.meta[_TERMINATED] = True
        raise KeyboardInterrupt  # not SystemExit, which a job or a method may raise by itself

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _end_at_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # programs in the background do not hear it
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C inside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _faults_in_one_line(ctx: click.Context) -> Iterator[None]:
    try:
        with memory_errors():
            check_address_space()
            yield
    except ViewfuseError as error:
        _stop(_in_words(ctx, error))
    except click.UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # newer versions of click show help in this way
            raise
        asked = f"viewfuse {ctx.invoked_subcommand or ''}".strip()  # click does not say whose option lacks a value
        verb = error.ctx.command_path if error.ctx is not None else asked
        _stop(f"{plain(_usage(error)).rstrip('.')}; see {verb} --help")
    except BrokenPipeError:  # the reader closed the output, as `head` does
        _discard(sys.stdout)
        sys.exit(1)
    except OSError as error:  # of the system's own, such as a name that is too long
        if error.errno == errno.ENOSPC and error.filename is None:  # of files it is said where they are written
            _discard(sys.stdout)
            _stop(f"the output cannot be shown ({error.strerror}); files that were to be written are complete")
        _stop(f"{plain(error)}; check the path and its permissions")
    except KeyboardInterrupt as error:
        with _without_interrupts():  # so that a second Ctrl-C does not cut the message off
            if not ctx.meta.get(_TERMINATED):
                _stop(str(error) or "interrupted", 130)
            how_to_go_on = str(error).partition("; ")[2] or "what was written before is whole"
            _stop(f"terminated; {how_to_go_on}", 143)


def _usage(error: click.UsageError) -> str:
    """What click says, but for what its versions say in different ways."""
    if not isinstance(error, click.NoSuchOption):
        return error.format_message()
    near = f" (possible: {', '.join(sorted(error.possibilities))})" if error.possibilities else ""
    return f"No such option '{error.option_name}'{near}"


def _in_words(ctx: click.Context, message: object) -> str:
    """An error or a warning on one line, with the options of the verb for parameters."""
    command = ctx.meta.get(_VERB)
    if command is None:
        return plain(message)
    from viewfuse.cli.kinds import spelling

    return plain(spelled(message, spelling(command)))


def _stop(line: str, code: int = 2) -> NoReturn:
    tell(f"viewfuse: {line}")
    sys.exit(code)


def _discard(stream: TextIO) -> None:
    """Let what was printed, and what will be, go nowhere; else Python complains when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _shorten_waits() -> None:
    """Let idle threads sleep soon; it must be said before torch makes them.

    Threads that wait actively for long come to a standstill as soon as another program wants one of their cores:
    training was a hundred times slower beside a busy process. A short wait costs little where nothing else runs.

    On ARM torch hands products to oneDNN, which takes 0.09 ms to begin one, more with threads on busy cores; a small
    product takes 0.01 ms. A step of Handwritten is an eighth shorter without. Other processors have no such setting.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    os.environ.setdefault("TORCH_MKLDNN_MATMUL_MIN_SIZE", "1000000000")


def _show_warning(ctx: click.Context, shown: set[str], message: Warning | str, *_: Any, **__: Any) -> None:
    """Show a warning once, however many parts of the samples it is about."""
    line = _in_words(ctx, message)
    if line not in shown:
        shown.add(line)
        tell(f"viewfuse: warning: {line}")


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="viewfuse")
def main() -> None:
    """Cluster samples described by several views when some views of some samples are missing."""
