"""The figures that the paper prints, from paper/published.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

POOLED_RATES = (0.0, 0.25, 0.5, 0.75)
"""Of the paper's Table 2, which averages over them."""
MEAN = "mean"
"""Stands for the missing rate where the paper averages over `POOLED_RATES`."""


@dataclass(frozen=True)
class Figure:
    """A mean of the paper in percent; `sd` is NaN where it prints none."""

    table: str
    dataset: str
    missing_rate: str
    method: str
    condition: str
    metric: str
    value: float
    sd: float


@cache
def published() -> tuple[Figure, ...]:
    """Everything, in the order of the paper."""
    with files("benchmarks.experiments").joinpath("paper", "published.csv").open(encoding="utf-8") as file:
        return tuple(
            Figure(**{**row, "value": float(row["value"]), "sd": float(row["sd"] or "nan")})  # type: ignore[arg-type]
            for row in csv.DictReader(file)
        )


def figures_of(table: str, missing_rate: str) -> list[Figure]:
    """Those of one table at one missing rate, or at `MEAN`."""
    return [figure for figure in published() if (figure.table, figure.missing_rate) == (table, missing_rate)]
