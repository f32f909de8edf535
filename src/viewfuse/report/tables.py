"""What the run says in numbers, all tables of the page, and in words, what to look at and a paragraph for a paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np

from viewfuse.data.categories import category_of
from viewfuse.data.filling import FILLS
from viewfuse.errors import DataError
from viewfuse.fitted.clusters import Difference, typical_samples
from viewfuse.io.writers import Sheet, as_json
from viewfuse.methods.urrl.config import Config
from viewfuse.missing import describe
from viewfuse.plots.layout import find_patterns, lacking
from viewfuse.report.run_folder import FinishedRun
from viewfuse.selection import decisions as kinds
from viewfuse.selection.decision_texts import advice_of, label, listed, reasons_of, split_fell, words
from viewfuse.utils.settings import Spell


class Cluster(NamedTuple):
    """A cluster in numbers."""

    label: int
    samples: int
    share: float
    confidence: float  # mean over its samples; NaN where it has none
    uncertain: int
    found_again: tuple[float, str]  # how well, from 0 to 1, and a word for it; NaN and "" where it is not known
    interval: tuple[float, ...]  # in which the former lies in nine of ten cases; empty where it is not known
    has: tuple[float, ...]  # per view the share of its samples that have it
    typical: tuple[str, ...]  # ids of its surest samples


def clusters_of(run: FinishedRun) -> list[Cluster]:
    """The clusters by number, and whether each would be found again, where there are several."""
    found, several = [], run.n_clusters > 1
    for cluster in range(run.n_clusters):
        rows = np.flatnonzero(run.labels == cluster)
        mean = float(run.confidence[rows].mean()) if len(rows) else math.nan
        has = run.present[rows].mean(axis=0) if len(rows) else np.zeros(len(run.views))
        typical = tuple(run.ids[row] for row in typical_samples(rows, run.confidence).tolist())
        again = run.found_again[cluster] if run.found_again and several else (math.nan, "")
        own = run.trust.clusters[cluster] if run.trust is not None and several else {}
        interval = tuple(own[name] for name in ("low", "high") if name in own)
        facts = cluster, len(rows), len(rows) / max(len(run.ids), 1), mean, int(run.uncertain[rows].sum())
        found.append(Cluster(*facts, again, interval, tuple(has.tolist()), typical))
    return found


def features_of(run: FinishedRun) -> list[Difference]:
    """What sets the clusters apart, by cluster and view, the largest difference first."""
    found = run.features
    if found is None:
        return []
    labels, texts = found.whole_numbers("label").tolist(), [found.column(name) for name in ("view", "feature")]
    numbers = [found.numbers(name).tolist() for name in Difference._fields[3:]]
    return list(map(Difference, labels, *texts, *numbers))


def tables_of(run: FinishedRun) -> dict[str, Sheet]:
    """The tables by the names of their files."""
    header = ["cluster", "samples", "share", "confidence", "uncertain", "found_again", "in_a_word", "low", "high"]
    has = [f"has_{name}" for name in run.views]
    clusters = [
        (*one[:5], *one.found_again, *(one.interval or (math.nan, math.nan)), *one.has, " ".join(one.typical))
        for one in clusters_of(run)
    ]
    present, sizes, _ = find_patterns(run.present)
    patterns = [
        (lacking(one, run.views, longest=10_000), *one.astype(int).tolist(), size, size / len(run.ids))
        for one, size in zip(present, sizes.tolist(), strict=True)
    ]
    decided = [
        (name, as_json(one.chosen), f"{label(one)}: {words(one)}", as_json(one.evidence))
        for name, one in run.decisions.items()
    ]
    sheets = {
        "clusters.csv": Sheet([*header, *has, "typical"], clusters, printed=len(header)),
        "features.csv": Sheet(Difference._fields, features_of(run), ".7g"),
        "missing.csv": Sheet(["views", *has, "samples", "share"], patterns),
        "decisions.csv": Sheet(("decision", "chosen", "why", "evidence"), decided, printed=0),
    }
    if run.history is not None:
        columns = run.history.columns
        sheets["losses.csv"] = Sheet(tuple(columns), zip(*columns.values(), strict=True), printed=0)
    if run.number is not None:
        sheets["k.csv"] = k_sheet(run.number)
    if run.merges is not None:
        sheets["merges.csv"] = Sheet(tuple(run.merges.columns), zip(*run.merges.columns.values(), strict=True))
    return sheets


def merges_of(run: FinishedRun) -> list[tuple[list[int], list[int], float]]:
    """Which clusters join first: the labels of both groups, and how far apart these are."""
    if run.merges is None:
        return []
    cells = zip(run.merges.column("first"), run.merges.column("second"), run.merges.numbers("distance"), strict=True)
    groups: set[tuple[int, ...]] = {(label,) for label in range(run.n_clusters)}
    merges = []
    for row, (*pair, distance) in enumerate(cells):
        first, second = (
            tuple(sorted(map(int, cell.split()))) if cell.replace(" ", "").isdecimal() else () for cell in pair
        )
        if first == second or not {first, second} <= groups:
            where = f"{run.merges.path}, data row {row + 1}"
            raise DataError(f"{where}: {pair[0]!r} and {pair[1]!r} are no groups of clusters; check the file")
        groups = groups - {first, second} | {tuple(sorted(first + second))}
        merges.append(([*first], [*second], float(distance)))
    return merges


def k_sheet(number: kinds.ClusterNumber) -> Sheet:
    """Per split of the tree what speaks for it."""
    views = list(number.splits[0]["held_out"])
    names = ("strength", "error", "p_value", "level", "agreement", "null", "stability", "gap", "valley")
    rows = []
    for place, one in enumerate(number.splits):
        numbers = [one.get(name, math.nan) for name in names]
        numbers += [one.get(part, {}).get(name) for part in ("held_out", "views") for name in views]
        known = [math.nan if value is None else float(value) for value in numbers]
        rows.append((place, one["parent"], *one["sizes"], int(one["stands"]), *known))
    parts = [f"{part}_{name}" for part in ("held_out", "agreement") for name in views]
    return Sheet(("split", "parent", "left", "right", "stands", *names, *parts), rows, ".4g", printed=8)


def split_rows(number: kinds.ClusterNumber) -> list[list[tuple[str, str]]]:
    """Of the page's table of splits what each cell shows, and its value; the last ones say why splits do not stand."""

    def cell(name: str, value: float) -> tuple[str, str]:
        if math.isnan(value):
            return "\N{EN DASH}", ""
        tiny = name in ("p_value", "valley") and value < 0.001
        shown = "root" if name == "parent" and value < 0 else "< 0.001" if tiny else f"{value:.3g}"
        return shown, f"{value:.4g}"

    sheet = k_sheet(number)
    cells = [list(map(cell, sheet.header, row)) for row in sheet.rows]
    return [[*row, (split_fell(one),) * 2] for one, row in zip(number.splits, cells, strict=True)]


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
    found, without = sum(size > 0 for size in run.sizes), len(run.ids) - sum(run.sizes)
    more = f", and {count(without, 'outlier')}" if without else ""
    if run.n_clusters == 1 and kinds.ClusterNumber.name in run.decisions:  # and not what was asked for
        return f"{count(len(run.ids) - without, 'sample')} without clusters{more}"
    return f"{count(len(run.ids) - without, 'sample')} in {count(found, 'cluster')}{more}"


def how_many(run: FinishedRun) -> str:
    """Who chose the number of clusters."""
    decision = run.decisions.get(kinds.ClusterNumber.name)
    if decision is None:
        return f"You asked for {count(run.n_clusters - len(run.unused), 'cluster')}; other numbers were not tried."
    if decision.chosen != run.n_clusters - len(run.unused) and kinds.Update.name in run.decisions:
        return f"The number of clusters before the update: {words(decision)}."
    return f"The number of clusters: {words(decision)}."


def how_sure(run: FinishedRun, spell: Spell) -> list[str]:
    """Whether the clusters would be found again, and what else is known of them."""
    if run.n_clusters < 2:
        return []  # nothing to be unsure of
    if run.trust is None:
        mean = percent(float(run.confidence.mean())) if run.ids else ""
        return [f"On average, viewfuse is {mean} sure of a sample's cluster."] if mean else []
    known = [one.what for one in reasons_of(run.trust, spell)]
    return [f"Trust in these clusters \N{EN DASH} {words(run.trust, spell)}.", *known]


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


def apart(features: Sequence[Difference], label: int, top: int = 2) -> list[str]:
    """The features that set a cluster apart most, over all views, in words."""
    found = []
    own = sorted((one for one in features if one.label == label), key=lambda one: -abs(one.difference))[:top]
    for one in (one for one in own if one.difference):
        name = one.feature
        if category_of(name) is None:
            side, called = "high" if one.difference > 0 else "low", f"column {name}" if str(name).isdigit() else name
            name = f"{side} {called} in {one.view}"
        found.append(f"{name} ({mean_in_words(one, one.mean)}; others {mean_in_words(one, one.mean_of_others)})")
    return found


def mean_in_words(one: Difference, mean: float) -> str:
    """A mean; of the value of a category, the share of samples that have it."""
    return number(mean) if category_of(one.feature) is None else percent(mean)


def apart_in_words(run: FinishedRun) -> dict[int, list[str]]:
    """Per cluster the features that set it apart most."""
    features = features_of(run)
    return {label: apart(features, label) for label in range(run.n_clusters)}


def warnings_of(run: FinishedRun, spell: Spell) -> list[str]:
    """What a reader must not miss, the gravest first."""
    found = [] if run.trust is None else [advice_of(run.trust, spell)]  # the one thing to do first
    asked = kinds.Outliers, kinds.CellFilling, kinds.KnownClasses, kinds.KnownPairs, kinds.JointStageLength
    far, cells, classes, pairs, stage = (run.decisions.get(kind.name) for kind in asked)
    found += [] if far is None else [f"Outliers: {words(far)}."]
    if isinstance(classes, kinds.KnownClasses) and any(
        2 * classes.with_class.get(name, len(ids)) <= len(ids) for name, ids in classes.evidence.items()
    ):
        found.append(f"Hints: {words(classes)}.")
    if isinstance(pairs, kinds.KnownPairs) and pairs.kept < pairs.chosen:
        found.append(f"Pairs: {words(pairs)}.")
    empty = [label for label, size in enumerate(run.sizes) if not size and label not in run.unused]
    if empty:
        found.append(f"{count(len(empty), 'cluster')} of {run.n_clusters} hold no sample; ask for fewer clusters.")
    tiny = [run.called(label) for label, size in enumerate(run.sizes) if 0 < size < _TINY]
    if tiny:
        found.append(f"Fewer than {_TINY} samples are in {listed(tiny)}: check whether they are outliers.")
    if isinstance(stage, kinds.JointStageLength) and stage.ended:
        found.append(f"The joint stage {words(stage)}.")
    for cluster in range(run.n_clusters):
        inside = run.labels == cluster
        if inside.sum() < _TINY or inside.all():
            continue
        own, others = 1 - run.present[inside].mean(axis=0), 1 - run.present[~inside].mean(axis=0)
        v = int(np.argmax(own - others))
        if own[v] - others[v] > _MORE_MISSING:
            shares = f"{percent(float(own[v]))} of its samples lack it, {percent(float(others[v]))} of the others"
            found.append(f"Cluster {run.called(cluster)} may be about the missing view {run.views[v]}: {shares}.")
    if cells is not None and cells.evidence:
        found.append(f"Empty cells were {words(cells)}.")
    for one in map(str, run.summary.get("remarks") or []):
        start = one[:1] if one.startswith(tuple(run.views)) else one[:1].upper()  # names of views stay as they are
        found.append(f"{start}{one[1:]}{'' if one.endswith('.') else '.'}")
    return [one for one in found if one]


CITATION = (
    "G. Teng, T. Mao, C. Shen, X. Tian, X. Liu, Y. Chen, J. Ye: URRL-IMVC: Unified and Robust Representation Learning "
    "for Incomplete Multi-View Clustering. KDD 2024, doi:10.1145/3637528.3671887"
)
_GIVEN = (kinds.KnownClasses, kinds.KnownPairs, kinds.KnownWeights, kinds.BatchEffects, kinds.Update)
"""What a fit used besides the views and the parameters."""
_ELSEWHERE = ("n_clusters", "cluster_range", "random_state", "device", "n_jobs", "verbose")
"""Parameters that the paragraph has in words, and those that change no result."""


def given_in_words(decision: kinds.Decision) -> str:
    """A sentence on what a fit knew or used besides the views."""
    match decision:
        case kinds.KnownClasses(chosen=n, agreed=agreed):
            known = f"the classes of {count(n, 'sample')} were known beforehand"
            said = f"{known}; the clusters keep {agreed:,} of {n:,} with their class"
        case kinds.KnownPairs(chosen=n, kept=kept):
            known = f"{count(n, 'pair')} of samples {'was' if n == 1 else 'were'} known to be together or apart"
            said = f"{known}; the clusters keep {kept:,} of {n:,}"
        case kinds.Update():
            said = f"in the last update, {words(decision)}"
        case kinds.SavedSentence():
            said = f"{label(decision)}: {words(decision)}"
        case _:
            said = words(decision)
    return f"{said[:1].upper()}{said[1:]}."


def methods_text(run: FinishedRun) -> str:
    """What was done, in sentences to paste."""
    params = run.summary.get("params") or {}
    known = run.versions
    own = f"viewfuse {known['viewfuse']}" if "viewfuse" in known else "viewfuse"
    others = ", ".join(f"{name} {version}" for name, version in known.items() if name != "viewfuse")
    given = [given_in_words(run.decisions[kind.name]) for kind in _GIVEN if kind.name in run.decisions]
    is_led = bool({kinds.KnownClasses.name, kinds.KnownPairs.name} & run.decisions.keys())
    chosen = f"chosen{'' if is_led else ' without labels'}{' by a tested tree of splits' if run.number else ''}"
    number = run.decisions.get(kinds.ClusterNumber.name)
    if number is None or (isinstance(number, kinds.ClusterNumber) and number.end == "known"):
        chosen = "set beforehand" if number is None else "what is known beforehand needs"
    elif number.chosen != run.n_clusters - len(run.unused) and kinds.Update.name in run.decisions:
        chosen = f"made by an update; that before, {number.chosen}, was {chosen}"
    defaults = {"fill": FILLS[0], "outliers": "mark"} | {one.name: one.default for one in fields(Config)}
    set_to = ", ".join(
        f"{name} = {value}"
        for name, value in params.items()
        if name not in _ELSEWHERE and value is not None and defaults.get(name, "auto") != value
    )
    sentences = [
        f"{len(run.ids):,} samples with {len(run.views)} views ({', '.join(run.views)}) were clustered by the method "
        f"URRL-IMVC [1] as implemented in {own}{f' ({others})' if others else ''}.",
        f"Missing views: {describe(run.present)}.",
        f"The number of clusters, {run.n_clusters - len(run.unused)}, was {chosen}.",
        f"The random seed was {params.get('random_state', 'not fixed')}; all settings were the defaults of that "
        f"version{f', but for {set_to}' if set_to else ''}.",
        *given,
        f"No {'other ' if is_led else ''}label was used in training.",
    ]
    return " ".join(sentences) + f"\n\n[1] {CITATION}\n"
