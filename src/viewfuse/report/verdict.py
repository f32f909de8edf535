"""What the run says, in words: how many clusters, how sure, what sets them apart, and what to look at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.tables import Cluster, Feature, clusters_of, features_of
from viewfuse.selection.decisions import CellFilling, ClusterNumber, JointStageLength, Reliability
from viewfuse.selection.messages import words
from viewfuse.utils.settings import Spell

_MANY_UNCERTAIN = 0.2
_TINY = 5
_MORE_MISSING = 0.5
"""A view that is missing in a cluster this much more often than elsewhere may be what the cluster is about."""


def count(n: int, what: str) -> str:
    """A number with its noun."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def percent(share: float) -> str:
    """A share as people write it; not quite all is never 100 %."""
    return "over 99%" if 0.995 <= share < 1 else "under 1%" if 0 < share < 0.005 else f"{share:.0%}"


def number(value: float) -> str:
    """A measured number, short: three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def headline(run: FinishedRun) -> str:
    """How many clusters there are."""
    found = len(np.unique(run.labels))
    return f"{count(len(run.ids), 'sample')} in {count(found, 'cluster')}"


def how_many(run: FinishedRun) -> str:
    """Who chose the number of clusters."""
    decision = run.decisions.get(ClusterNumber.name)
    if decision is None:
        return f"You asked for {count(run.n_clusters, 'cluster')}; other numbers were not tried."
    return f"The number of clusters: {words(decision)}."


def how_sure(run: FinishedRun, spell: Spell) -> list[str]:
    """Whether the clusters would be found again, and how sure the samples are of theirs."""
    if run.n_clusters < 2:
        return []  # nothing to be unsure of
    return [line for line in (_reliability(run, spell), _confidence(run)) if line]


def _reliability(run: FinishedRun, spell: Spell) -> str:
    decision = run.decisions.get(Reliability.name)
    if not isinstance(decision, Reliability):
        return ""
    advice = " Samples near a border may belong elsewhere." if decision.chosen == "partly stable" else ""
    return f"The clusters are {words(decision, spell)}.{advice}"


def _confidence(run: FinishedRun) -> str:
    if not len(run.ids):
        return ""
    doubtful = int(run.uncertain.sum())
    few = count(doubtful, "sample") if doubtful else "no sample"
    verb = "is" if doubtful == 1 or not doubtful else "are"
    mean = percent(float(run.confidence.mean()))
    share = f", {percent(doubtful / len(run.ids))} of all," if doubtful else ""
    below = f"uncertain (below {percent(run.level)})"
    return f"On average, viewfuse is {mean} sure of a sample's cluster; {few}{share} {verb} {below}."


def missing_views(run: FinishedRun) -> str:
    """How much is missing."""
    lacking = int((~run.present.all(axis=1)).sum())
    if len(run.views) == 1:
        return ""
    if not lacking:
        return f"Every sample has all {len(run.views)} views."
    return f"{count(lacking, 'sample')} of {len(run.ids):,} lack at least one of the {len(run.views)} views." + (
        " They were placed by the views that they have and by their neighbours."
    )


def apart(features: Sequence[Feature], label: int, top: int = 2) -> list[str]:
    """The features that set a cluster apart most, over all views, in words."""
    own = sorted((one for one in features if one.label == label), key=lambda one: -abs(one.difference))
    return [_in_words(one) for one in own[:top] if one.difference]


def _in_words(one: Feature) -> str:
    side = "high" if one.difference > 0 else "low"
    name = f"column {one.feature}" if one.feature.isdigit() else one.feature
    return f"{side} {name} in {one.view} ({number(one.mean)}; others {number(one.mean_of_others)})"


def warnings_of(run: FinishedRun) -> list[str]:
    """What a reader must not miss, the gravest first."""
    found = [*_on_reliability(run), *_doubts(run, clusters_of(run)), *_on_joint_stage(run), *_led_by_missing(run)]
    return [*found, *_on_cells(run), *(_sentence(str(one)) for one in run.summary.get("remarks") or [])]


def _on_reliability(run: FinishedRun) -> list[str]:
    decision = run.decisions.get(Reliability.name)
    if decision is None or decision.chosen != "doubtful":
        return []
    return ["Check these clusters in another way before you rely on them, or try another number of clusters."]


def _doubts(run: FinishedRun, clusters: Sequence[Cluster]) -> list[str]:
    found = []
    empty = [str(one.label) for one in clusters if not one.samples]
    if empty:
        found.append(f"{count(len(empty), 'cluster')} of {len(clusters)} hold no sample; ask for fewer clusters.")
    tiny = [str(one.label) for one in clusters if 0 < one.samples < _TINY]
    if tiny:
        found.append(f"Fewer than {_TINY} samples are in {_listed(tiny)}: look whether they are outliers.")
    lost = [str(one.label) for one in clusters if one.found_again[1] == "dissolves"]
    if lost:
        found.append(f"With views hidden or samples left out, {_listed(lost)} would not be found again.")
    unsure = [str(one.label) for one in clusters if one.confidence < run.level]
    if unsure:
        found.append(f"The samples of {_listed(unsure)} are uncertain on average; check whether they belong together.")
    if len(run.ids) and run.uncertain.mean() > _MANY_UNCERTAIN:
        found.append(f"{percent(float(run.uncertain.mean()))} of the samples are uncertain.")
    return found


def _listed(labels: Sequence[str]) -> str:
    shown = list(labels[:6]) + ["others"] * (len(labels) > 6)
    return f"cluster {shown[0]}" if len(shown) == 1 else f"clusters {', '.join(shown[:-1])} and {shown[-1]}"


def _on_joint_stage(run: FinishedRun) -> list[str]:
    decision = run.decisions.get(JointStageLength.name)
    if not isinstance(decision, JointStageLength) or not decision.ended:
        return []
    return [f"The joint stage {words(decision)}."]


def _on_cells(run: FinishedRun) -> list[str]:
    decision = run.decisions.get(CellFilling.name)
    return [f"Empty cells were {words(decision)}."] if decision is not None and decision.evidence else []


def _led_by_missing(run: FinishedRun) -> list[str]:
    """Clusters whose samples lack a view far more often than the others do."""
    found = []
    for label in range(run.n_clusters):
        inside = run.labels == label
        if inside.sum() < _TINY or inside.all():
            continue
        own, others = 1 - run.present[inside].mean(axis=0), 1 - run.present[~inside].mean(axis=0)
        v = int(np.argmax(own - others))
        if own[v] - others[v] > _MORE_MISSING:
            shares = f"{percent(float(own[v]))} of its samples lack it, {percent(float(others[v]))} of the others"
            found.append(f"Cluster {label} may be about the missing view {run.views[v]}: {shares}.")
    return found


def _sentence(text: str) -> str:
    return (text[:1].upper() + text[1:]).rstrip(".") + "."


def apart_in_words(run: FinishedRun) -> dict[int, list[str]]:
    """Per cluster the features that set it apart most."""
    features = features_of(run)
    return {label: apart(features, label) for label in range(run.n_clusters)}
