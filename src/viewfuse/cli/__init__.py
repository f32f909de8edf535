"""The command line: one file per verb, or per few that belong together."""

from __future__ import annotations

import atexit
import errno
import importlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from viewfuse.errors import ViewfuseError
from viewfuse.io.isolated import process
from viewfuse.utils.console import plain, tell
from viewfuse.utils.memory import check_address_space, memory_errors
from viewfuse.utils.settings import spelled
from viewfuse.utils.version import __version__

VERBS = {
    "fit": ("fit", "Cluster the samples of one or more files."),
    "predict": ("predict", "Place the samples of files in the clusters of a saved model."),
    "report": ("runs", "Write a page that shows a run, or compares two."),
    "compare": ("compare", "Fit several methods on the same data, and say which is better."),
    "inspect": ("inspect", "Say what is in files and what is missing, before any training."),
    "serve": ("predict", "Answer requests over HTTP with a saved model."),
}
"""Those that a newcomer needs: the module of each, in which a function is called like it, and what it does."""
MORE = {
    "choose": ("inspect", "Say how many clusters the samples of files have, without a fit."),
    "drift": ("runs", "Say whether the samples of files are like those that a run was fitted on."),
    "embed": ("predict", "Write the embeddings of samples under a saved model."),
    "explain": ("predict", "Say why a saved model places the samples of files where it does."),
    "fit-large": ("fit", "Cluster the rows of sharded Parquet files, in one or many processes."),
    "impute": ("predict", "Fill missing views with what a saved model expects there."),
    "info": ("predict", "Say what a saved model is."),
    "rename": ("runs", "Name the clusters of a run: a CSV file has the columns label and name."),
    "score": ("predict", "Compare labels with known ones."),
    "update": ("runs", "Let new samples join a run, whose clusters keep their numbers."),
    "validate": ("runs", "Repeat the fit of a run, and measure how often its clusters are found again."),
}
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
                formatter.write_dl([(verb, help) for verb, (_, help) in verbs.items()], col_max=15)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb `cmd_name`."""
        if cmd_name == "bench":
            ctx.fail("Benchmarks are not in the package; in a checkout, run python -m benchmarks")
        if (known := (VERBS | MORE).get(cmd_name)) is None:
            return None
        module, help = known
        command: click.Command = getattr(importlib.import_module(f"viewfuse.cli.{module}"), cmd_name.replace("-", "_"))
        command.help = help
        return command

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
        shown: set[str] = set()

        def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
            line = _in_words(ctx, message)
            if line not in shown:  # once, however many parts of the samples it is about
                shown.add(line)
                tell(f"viewfuse: warning: {line}")

        # Threads of torch that wait actively stand still beside another program: training was a hundred times slower.
        if "OMP_WAIT_POLICY" not in os.environ:
            os.environ.setdefault("GOMP_SPINCOUNT", "2000")
        # On ARM the start of oneDNN takes longer than a small product: a step is an eighth shorter without.
        os.environ.setdefault("TORCH_MKLDNN_MATMUL_MIN_SIZE", "1000000000")
        os.environ["MPLBACKEND"] = "Agg"  # matplotlib cannot even be imported under the name of one that is not there
        with _faults_in_one_line(ctx), _ended_tidily(ctx), warnings.catch_warnings():
            warnings.showwarning = show_warning
            return super().invoke(ctx)


@contextmanager
def _handling(number: int, handler: Any) -> Iterator[None]:
    """Handle a signal so inside, where this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def _ended_tidily(ctx: click.Context) -> Iterator[None]:
    """SIGTERM, as cluster schedulers send it, ends a verb as Ctrl-C does, with exit code 143; a second one at once.

    Ctrl-C while Python itself ends, when nothing is left to be done, says nothing more.
    """

    def terminated(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        ctx.meta[_TERMINATED] = True
        raise KeyboardInterrupt  # not SystemExit, which a job or a method may raise by itself

    atexit.unregister(_end_at_once)
    atexit.register(_end_at_once)  # as the last one, so that it is the first to be called
    with _handling(signal.SIGTERM, terminated):
        yield


def _end_at_once() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # programs in the background do not hear it
        signal.signal(signal.SIGINT, signal.SIG_DFL)


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
        said = error.format_message()
        if isinstance(error, click.NoSuchOption):  # of which versions of click speak in different ways
            near = f" (possible: {', '.join(sorted(error.possibilities))})" if error.possibilities else ""
            said = f"No such option '{error.option_name}'{near}"
        asked = f"viewfuse {ctx.invoked_subcommand or ''}".strip()  # click does not say whose option lacks a value
        verb = error.ctx.command_path if error.ctx is not None else asked
        _stop(f"{plain(said).rstrip('.')}; see {verb} --help")
    except BrokenPipeError:  # the reader closed the output, as `head` does
        _discard_output()
        sys.exit(1)
    except OSError as error:  # of the system's own, such as a name that is too long
        if error.errno == errno.ENOSPC and error.filename is None:  # of files it is said where they are written
            _discard_output()
            _stop(f"the output cannot be shown ({error.strerror}); files that were to be written are complete")
        _stop(f"{plain(error)}; check the path and its permissions")
    except KeyboardInterrupt as error:
        with _handling(signal.SIGINT, signal.SIG_IGN):  # so that a second Ctrl-C does not cut the message off
            if not ctx.meta.get(_TERMINATED):
                _stop(str(error) or "interrupted", 130)
            how_to_go_on = str(error).partition("; ")[2] or "what was written before is whole"
            _stop(f"terminated; {how_to_go_on}", 143)


def _in_words(ctx: click.Context, message: object) -> str:
    """An error or a warning on one line, with the options of the verb for parameters."""
    command = ctx.meta.get(_VERB)
    if command is None:
        return plain(message)
    from viewfuse.cli.options import spelling

    return plain(spelled(message, spelling(command)))


def _stop(line: str, code: int = 2) -> NoReturn:
    tell(f"viewfuse: {line}")
    sys.exit(code)


def _discard_output() -> None:
    """Let what was printed, and what will be, go nowhere; else Python complains when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="viewfuse")
def main() -> None:
    """Cluster samples described by several views when some views of some samples are missing."""
