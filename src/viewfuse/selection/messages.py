"""Decisions in words: the only place where they become sentences."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import starmap
from typing import Any

from viewfuse.data.empty_cells import in_words as cells_in_words
from viewfuse.selection.rules import Decision

LABELS = {
    "n_clusters": "number of clusters",
    "empty_cells": "empty cells",
    "reduction": "reduction",
    "scaling": "scaling",
    "pretraining": "pre-training",
    "joint_stage": "joint stage",
    "clusters": "clusters",
    "confidence": "confidence",
    "reliability": "reliability",
}
"""How people call what was decided."""


def told(decisions: Mapping[str, Decision]) -> dict[str, Decision]:
    """The decisions, each with "why" in words."""
    return {name: {**one, "why": f"{LABELS[name]}: {_WORDS[name](one)}"} for name, one in decisions.items()}


def in_words(decisions: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What was decided and why, one sentence each."""
    return [str(decision["why"]) for decision in decisions.values()]


def by_label(decisions: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Per label of what was decided, the sentence without it."""
    return {LABELS[name]: str(one["why"]).removeprefix(f"{LABELS[name]}: ") for name, one in decisions.items()}


def _empty_cells(decision: Decision) -> str:
    if not decision["evidence"]:
        return "none"
    source = {"neighbors": "from the nearest rows", "median": "with medians of columns"}[decision["chosen"]]
    return f"filled {source}; " + "; ".join(starmap(cells_in_words, decision["evidence"].items()))


def _reduction(decision: Decision) -> str:
    changed = [name for name, how in decision["chosen"].items() if how != "none"]
    return "; ".join(_on_view(name, decision) for name in changed) or _unchanged(decision)


def _unchanged(decision: Decision) -> str:
    return "none, as asked" if decision["asked"] else "none, every view is narrow enough"


_STEPS = {
    "none": "principal components", "standard": "principal components of standardised columns",
    "log1p": "logarithms, principal components",
    "log": "equal row sums, logarithms, principal components", "terms": "tf-idf, unit length, singular vectors",
    "weighted": "logarithms, unit length, singular vectors",
}  # fmt: skip


def _on_view(name: str, decision: Decision) -> str:
    (before, after), facts = decision["columns"][name], decision["evidence"][name]
    steps, kept = _STEPS[facts["transform"]], f"{facts['kept']:.0%} of the variance"
    return f"{name}, {facts['name']}, from {before:,} to {after} columns ({steps}; {kept})"


def _scaling(decision: Decision) -> str:
    chosen, scores, failed = decision["chosen"], decision["evidence"], decision["diverged"]
    listed = ", ".join(f"{scaling} {score:.3f}" for scaling, score in sorted(scores.items(), key=lambda pair: -pair[1]))
    if decision["asked"]:
        words = f"{chosen}, as asked"
    elif decision.get("clear"):
        words = f"{chosen}; others were not tried, as its clusters are clear"
    elif decision.get("quick"):
        words = f"{chosen}; others were not tried, as effort='quick'"
    elif len(scores) == 1:
        words = (
            f"{chosen}, the only one that could be trained" if failed else f"{chosen}, as all others do the same here"
        )
    elif scores[chosen] >= max(scores.values()):
        words = f"{chosen}, as its clusters agree best with the neighbours in all views "
        words += f"(neighbour agreement times evenness: {listed})"
    else:
        words = f"{chosen}, as no other has clusters that agree clearly better with the neighbours in all views "
        words += f"(neighbour agreement times evenness: {listed})"
    return words + _on_failures(failed) + _on_mixing(decision)


def _on_failures(failed: list[str]) -> str:
    return f"; training diverged with {' and '.join(failed)}" if failed else ""


def _on_mixing(decision: Decision) -> str:
    scores, failed, whole = decision["evidence"], decision["diverged"], decision["as_a_whole"]
    if decision["chosen"] == "mixed":
        return f"; one scale for all columns of {', '.join(whole)}" if whole else "; every column has its own scale"
    if len(scores) > 1 and "mixed" not in (*scores, *failed):
        return "; mixed was not tried, as it does the same as standard here"
    return ""


def _pretraining(decision: Decision) -> str:
    lasted, planned = decision["chosen"], decision["planned"]
    if lasted < planned and "agreement" not in decision["evidence"]:
        return f"{lasted} of {planned} epochs, as the clusters are clear by then"
    if lasted < planned:
        agreed = decision["evidence"]["agreement"]
        return f"{lasted} of {planned} epochs, as trainings agree by then (adjusted Rand index {agreed:.2f})"
    return f"all {lasted} epochs" if lasted else "none"


def _joint_stage(decision: Decision) -> str:
    kept, lasted = decision["chosen"], decision["lasted"]
    if not lasted:
        return "none, clusters by k-means on the embedding"
    if decision["ended"]:
        return f"ended early, {decision['ended']}; kept is the network after {kept} of its epochs"
    if not kept:
        why = "merged clusters" if decision["merged"] else "made the clusters no better"
        return f"taken back after {lasted} epochs, as it {why}"
    if kept < lasted:
        best = "before clusters were merged" if decision["merged"] else "when its clusters were the best"
        return f"kept is the network after {kept} of {lasted} epochs, {best}"
    if lasted < decision["planned"]:
        return f"{lasted} of {decision['planned']} epochs, as its clusters hardly got better"
    return f"all {lasted} epochs"


def _reliability(decision: Decision) -> str:
    name, n, agreed = decision["chosen"], decision["trainings"], decision["evidence"]["agreement"]
    index = f"with an adjusted Rand index of {agreed:.2f} (1: the same)"
    doubt = name == "doubtful" and decision["alone"]
    cure = "; effort='thorough' trains more of them and keeps the best" if doubt else ""
    if n == 1:
        return f"{name}, as the network and k-means on the filled views agree {index}{cure}"
    verb = "agree" if decision["final"] else "agreed, when the scaling was chosen,"
    return f"{name}, as {n} trainings {verb} {index}{cure}"


def _clusters(decision: Decision) -> str:
    scores = decision["evidence"]
    listed = ", ".join(f"{name} {score:.3f}" for name, score in scores.items())
    if decision["chosen"] == "network":
        return "those of the network" + (f" (neighbour agreement times evenness: {listed})" if len(scores) > 1 else "")
    words = "those of k-means on the filled views, which the network was taught, as they agree better with the "
    return words + f"neighbours in all views (neighbour agreement times evenness: {listed})"


def _confidence(decision: Decision) -> str:
    if not decision["evidence"]:
        return f"{decision['chosen']:.2f} on average: the paper's soft labels, which are not calibrated"
    shared, chance = decision["evidence"]["shared_with_kmeans"], 1 / decision["n_clusters"]
    words = f"{decision['chosen']:.2f} on average, as k-means on the filled views put {shared:.0%} of the samples into "
    return words + f"the clusters that the network found by itself (by chance {chance:.0%})"


def _n_clusters(decision: Decision) -> str:
    chosen, other = decision["chosen"], decision["runner_up"]
    scores = {one["k"]: f"{one['score']:.2f}" for one in decision["curve"]}
    if not scores:
        return "1, as there are too few samples to tell more"
    if chosen == 1:
        words = "1, as nothing holds together better than in a Gaussian of the same covariance"
        return words + f"; if there must be more, {other} hold best"
    doubt = "" if decision["structured"] else ", although hardly anything holds together better than in a Gaussian"
    words = f"{chosen}, which hold together in all views and are found again with samples left out{doubt}"
    words += f" (score {scores[chosen]}"
    return words + (f"; the next peak is {other} with {scores[other]})" if other else ")") + _on_all_that_hold(decision)


def _on_all_that_hold(decision: Decision) -> str:
    *most, last = map(str, decision["candidates"])
    return f"; {', '.join(most)} and {last} {'all' if len(most) > 1 else 'both'} hold" if most else ""


_WORDS = {
    "n_clusters": _n_clusters,
    "empty_cells": _empty_cells,
    "reduction": _reduction,
    "scaling": _scaling,
    "pretraining": _pretraining,
    "joint_stage": _joint_stage,
    "clusters": _clusters,
    "confidence": _confidence,
    "reliability": _reliability,
}
