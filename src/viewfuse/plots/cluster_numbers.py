"""A picture of how the number of clusters was chosen: the score of every number, and what it is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viewfuse.plots.colors import distinct_colors
from viewfuse.plots.pictures import picture

_MEASURES = {
    "hidden_views": "views hidden",
    "resampling": "samples left out",
    "neighbors": "neighbours in all views",
    "gap": "gap of the neighbour graph",
}


def draw_choice(path: Path, decision: Mapping[str, Any]) -> None:
    """Draw the curve of a decision about the number of clusters; of too few samples there is none to draw.

    Parameters
    ----------
    decision : ``decisions_["n_clusters"]``
    """
    if not decision["curve"]:
        return
    with picture(path, "pictures", (8, 7)) as figure:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _draw_scores(upper, decision)
        _draw_measures(lower, decision["curve"])


def _draw_measures(lower: Any, curve: Sequence[Mapping[str, Any]]) -> None:
    """What the score is made of."""
    ks = [one["k"] for one in curve]
    for color, (name, words) in zip(distinct_colors(len(_MEASURES)), _MEASURES.items(), strict=True):
        lower.plot(ks, [one[name] for one in curve], color=color, label=words, linewidth=1.5)
        lower.plot(ks, [one[f"{name}_null"] for one in curve], color=color, linestyle=":", linewidth=1.2)
    lower.plot([], [], color="0.4", linestyle=":", label="in a Gaussian of the same covariance")
    lower.set_xlabel("number of clusters")
    lower.set_ylabel("agreement")
    lower.xaxis.get_major_locator().set_params(integer=True)
    lower.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8, frameon=False)


def _draw_scores(axes: Any, decision: Mapping[str, Any]) -> None:
    scores = {one["k"]: one["score"] for one in decision["curve"]}
    axes.plot(list(scores), list(scores.values()), color="0.3", marker="o", markersize=3, linewidth=1.5)
    held = [k for k in decision["candidates"] if k in scores]
    axes.plot(held, [scores[k] for k in held], "o", color="0.3", markerfacecolor="none", markersize=11)
    chosen = decision["chosen"]
    if chosen in scores:
        axes.axvline(chosen, color="tab:red", linewidth=1, linestyle="--")
    also = f"; {' and '.join(str(k) for k in held if k != chosen)} hold, too" if len(held) > 1 else ""
    nothing = "1 cluster: nothing beyond a Gaussian of the same covariance"
    axes.set_title(nothing if chosen == 1 else f"{chosen} clusters{also}", fontsize=11)
    axes.set_ylabel("score: found, less what a Gaussian gives")
    axes.grid(alpha=0.3)
