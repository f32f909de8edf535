"""Options for what is known of samples before a fit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from viewfuse.cli.options import pairs
from viewfuse.io.labels import read_labels, read_pairs

_FILE = click.Path(path_type=Path)
_OPTIONS = (
    click.option("--hints", type=_FILE, metavar="FILE",
                 help="CSV with the columns id and label: classes of some samples, which their clusters follow. "
                 "Empty: not known."),
    click.option("--must-link", type=_FILE, metavar="FILE", help="CSV of two columns: ids that belong together."),
    click.option("--cannot-link", type=_FILE, metavar="FILE", help="CSV of two columns: ids that do not."),
    click.option("--sample-weight", type=_FILE, metavar="FILE",
                 help="CSV with the columns id and weight: 2 counts like two samples, 0 is not learned from."),
    click.option("--view-weights", multiple=True, metavar="VIEW=NUMBER",
                 help="How much a view counts; 1 by default. Once per view."),
)  # fmt: skip


@dataclass(frozen=True)
class KnownFiles:
    """The files in which something is known of samples, None where there is none, and weights of views, VIEW=NUMBER."""

    hints: Path | None
    must_link: Path | None
    cannot_link: Path | None
    sample_weight: Path | None
    view_weights: tuple[str, ...]

    def read(self) -> dict[str, Any]:
        """By name what `fit` is given."""
        weights = None if self.sample_weight is None else read_labels(self.sample_weight, "weight")
        return {
            "y": None if self.hints is None else read_labels(self.hints),
            "must_link": None if self.must_link is None else read_pairs(self.must_link),
            "cannot_link": None if self.cannot_link is None else read_pairs(self.cannot_link),
            "sample_weight": weights,
            "view_weights": pairs("--view-weights", self.view_weights),
        }


def known_files(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of what is known, as one argument `known`."""

    @functools.wraps(function)
    def collected(**rest: Any) -> None:
        own = KnownFiles(**{one.name: rest.pop(one.name) for one in fields(KnownFiles)})
        function(known=own, **rest)

    for option in reversed(_OPTIONS):
        collected = option(collected)
    return collected
