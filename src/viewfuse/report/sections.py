"""The sections of the page about one run, each made from the run alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from viewfuse.io.writers import as_json
from viewfuse.plots.layout import find_patterns, lacking
from viewfuse.report import charts, tables
from viewfuse.report.html import filled
from viewfuse.report.run_folder import FinishedRun
from viewfuse.selection.decision_texts import label, words
from viewfuse.selection.decisions import JointStageLength
from viewfuse.utils.settings import Spell

if TYPE_CHECKING:
    from markupsafe import Markup

_MOST_FEATURES = 1_500
"""More bars would make the page slow; of more the largest of every cluster are shown."""
_MOST_PATTERNS = 15
_MOST_LISTED = 12
"""With more clusters only the table says what sets each apart; of as many facts the first are."""
_FIRST = 3


class Section(NamedTuple):
    """A part of the page with its heading, and how the navigation calls it."""

    key: str
    title: str
    body: Markup


def verdict(run: FinishedRun, spell: Spell) -> Markup:
    """The first screen: what was found, how sure that is, what sets the clusters apart, what to look at."""
    apart = {} if run.n_clusters > _MOST_LISTED else tables.apart_in_words(run)
    return filled(
        "verdict.html",
        run=run,
        headline=tables.headline(run),
        said=[tables.how_many(run), *tables.how_sure(run, spell)],
        warnings=tables.warnings_of(run, spell),
        missing=tables.missing_views(run),
        apart={label: words for label, words in apart.items() if words},
    )


def cluster_section(run: FinishedRun) -> Section:
    """A row per cluster."""
    return Section("clusters", "Clusters", filled("clusters.html", run=run, clusters=tables.clusters_of(run)))


def map_section(runs: Sequence[FinishedRun]) -> Section:
    """Find a sample, see it on the map, and read why it is there."""
    numbered = [(number, run, tables.headline(run)) for number, run in enumerate(runs)]
    return Section("map", "Map and samples", filled("maps.html", runs=numbered))


def feature_section(run: FinishedRun) -> Section | None:
    """Bars per cluster and view."""
    features = tables.features_of(run)
    if not features:
        return None
    top = max(3, _MOST_FEATURES // max(run.n_clusters, 1))
    clusters = []
    for cluster in range(run.n_clusters):
        own = [one for one in features if one.label == cluster]
        kept = set(sorted(own, key=lambda one: -abs(one.difference))[:top])
        clusters += [(cluster, len(own), [one for one in own if one in kept])] if own else []
    most = max(abs(one.difference) for one in features) or 1.0
    explained = len(run.ids if run.explained is None else run.explained)
    body = filled("features.html", run=run, clusters=clusters, most=most, explained=explained)
    return Section("features", "What sets the clusters apart", body)


def missing_section(run: FinishedRun) -> Section | None:
    """Which views are missing for whom."""
    if len(run.views) < 2:
        return None
    present, sizes, _ = find_patterns(run.present)
    patterns = [
        (list(zip(run.views, there.tolist(), strict=True)), lacking(there, run.views, longest=200), size)
        for there, size in zip(present[:_MOST_PATTERNS], sizes[:_MOST_PATTERNS].tolist(), strict=True)
    ]
    body = filled(
        "missing.html",
        run=run,
        said=tables.missing_views(run),
        having=run.present.sum(axis=0).tolist(),
        patterns=patterns,
        rest=len(sizes) - len(patterns),
        clusters=tables.clusters_of(run),
    )
    return Section("missing", "Missing views", body)


def k_section(run: FinishedRun) -> Section | None:
    """How the number of clusters was chosen, if it was, and which clusters join when there are fewer."""
    merges, number = tables.merges_of(run), run.number
    trees = [] if number is None else [charts.split_tree(number.splits)]
    trees += [charts.merge_tree(merges, run.n_clusters)] if len(merges) > 1 else []
    if not trees:
        return None
    header, rows = ([], []) if number is None else (tables.k_sheet(number).header, tables.split_rows(number))
    body = filled("k.html", how_many=tables.how_many(run), header=header, rows=rows, trees=trees)
    return Section("k", "The number of clusters", body)


def decision_section(run: FinishedRun, spell: Spell) -> Section | None:
    """What was decided, and from which evidence."""
    if not run.decisions:
        return None
    facts = [(label(one), words(one, spell), "\n".join(_flat("", one.evidence))) for one in run.decisions.values()]
    return Section("decisions", "Decisions", filled("decisions.html", decisions=facts))


def _flat(name: str, value: Any) -> Iterator[str]:
    """Nested facts, one per line; of many numbers, as of columns, the first ones."""
    many = isinstance(value, dict) and len(value) > _MOST_LISTED
    if many and all(isinstance(one, int | float) for one in value.values()):
        first = ", ".join(f"{key} ({inner:.4g})" for key, inner in list(value.items())[:_FIRST])
        yield f"{name}: {len(value):,}, such as {first}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name} {key}".strip(), inner)
    else:
        shown = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else as_json(value)
        yield f"{name}: {shown}"


def _left_of_joint_stage(run: FinishedRun) -> tuple[str, str]:
    """What became of the joint stage, in words, where not all of it counts; and what charts say where nothing does."""
    stage = run.decisions.get(JointStageLength.name)
    if not isinstance(stage, JointStageLength) or stage.chosen == stage.lasted:
        return "", ""
    return words(stage), "" if stage.chosen else "; shaded: undone"


def loss_section(run: FinishedRun) -> Section | None:
    """The losses of training."""
    if run.history is None or not len(run.history) or "epoch" not in run.history.columns:
        return None
    epochs, stages = run.history.numbers("epoch").tolist(), run.history.columns.get("stage", [])
    since = next((epochs[row] for row, stage in enumerate(stages) if stage == "joint"), None)
    kept, undone = _left_of_joint_stage(run)
    curves = []
    for name in run.history.columns:
        if name not in ("epoch", "stage", "seconds"):
            values = zip(epochs, run.history.numbers(name).tolist(), strict=True)
            pairs = [(x, y) for x, y in values if math.isfinite(y)]
            pairs = pairs[next((row for row, (_, y) in enumerate(pairs) if y), len(pairs)) :]  # zero: not in use yet
            title = f"{name.replace('_', ' ')}{undone}"
            curves += [charts.line_chart(pairs, title, "epoch", since=since)] if pairs else []
    return Section("losses", "Training", filled("losses.html", curves=curves, joint=since is not None, kept=kept))


def reproduce_section(run: FinishedRun) -> Section:
    """How to get the same again."""
    params = run.summary.get("params") or {}
    body = filled("reproduce.html", run=run, params=params, methods=tables.methods_text(run))
    return Section("reproduce", "Reproduce", body)
