"""Draw reliability.svg from reliability.csv: python results/trust/draw.py."""

from __future__ import annotations

import csv
from pathlib import Path

from matplotlib.figure import Figure

HERE = Path(__file__).parent

if __name__ == "__main__":
    with (HERE / "reliability.csv").open() as file:
        rows = list(csv.DictReader(file))
    ax = Figure(figsize=(4.2, 3.6), layout="constrained").subplots()
    ax.plot([0.3, 1], [0.3, 1], color="0.7", linewidth=1)
    for name, kind in (("", "estimated at every fit"), ("_validated", "after validate")):
        points = [(float(row["confidence" + name]), float(row["found_again" + name])) for row in rows]
        ax.plot(*zip(*points, strict=True), marker="o", label=kind)
    ax.set(xlabel="confidence", ylabel="share of repeated fits in the same cluster", xlim=(0.3, 1), ylim=(0.3, 1))
    ax.legend(frameon=False)
    ax.figure.savefig(HERE / "reliability.svg", metadata={"Date": None})
