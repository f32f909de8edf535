"""How far a fit is: one bar with named stages on a terminal or in a notebook, elsewhere one line per stage."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from tqdm.auto import tqdm

from viewfuse.utils.console import is_live, tell


class Progress:
    """Shows the epochs of a whole fit.

    Used as a context manager; the bar is removed at the end, and nothing is shown before the first stage begins.

    Parameters
    ----------
    shown : whether anything is shown at all

    Attributes
    ----------
    epochs : of the stage, so far
    """

    def __init__(self, *, shown: bool = False) -> None:
        has_bar = shown and is_live()
        self._bar = tqdm(total=0, unit=" epochs", disable=not has_bar, leave=False, delay=1e-9)
        self._has_lines = shown and not has_bar
        self._stage, self.epochs, self._began = "", 0, 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        self.end_stage()
        self._bar.close()

    def expect(self, epochs: int) -> None:
        """Say how many epochs are still to come, at most."""
        self._bar.total = self._bar.n + epochs

    def begin(self, stage: str) -> None:
        """Begin a stage; the one before is over."""
        self.end_stage()
        self._stage, self.epochs, self._began = stage, 0, time.perf_counter()
        self._bar.set_description_str(stage)  # with a colon of its own there would be two where no total is known

    def advance(self, loss: float) -> None:
        """One epoch of the stage is done, with this loss."""
        self.epochs += 1
        self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
        self._bar.update()

    def reach(self, epochs: int, loss: float) -> None:
        """Advance to so many epochs of the stage, with this loss; those that were shown already count."""
        for _ in range(epochs - self.epochs):
            self.advance(loss)

    def __reduce__(self) -> tuple[type[Progress], tuple[()]]:
        """Show nothing in another process."""
        return Progress, ()

    def tell(self, line: str) -> None:
        """A line for people that stays."""
        if self._has_lines:
            tell(line)
        elif not self._bar.disable:
            self._bar.write(line, file=sys.stderr)

    def end_stage(self) -> None:
        """Say how long the stage took; others may follow."""
        if self._stage and self._has_lines:
            seconds = time.perf_counter() - self._began
            self.tell(f"{self._stage}: {self.epochs} epochs in {seconds:.0f} s")
        self._stage = ""


SILENT = Progress()
"""Shows nothing."""
