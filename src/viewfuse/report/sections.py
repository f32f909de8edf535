"""The sections of the page about one run, each made from the run alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from viewfuse.data.categories import category_of
from viewfuse.fitted.clusters import Difference
from viewfuse.io.writers import as_json
from viewfuse.plots.places import find_patterns, lacking
from viewfuse.report import charts
from viewfuse.report.html import Html, cell, join, note, paragraphs, samples, table, tag, unfolding, whole
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.tables import (
    Cluster,
    apart_in_words,
    clusters_of,
    count,
    features_of,
    headline,
    how_many,
    how_sure,
    k_sheet,
    merges_of,
    methods_text,
    missing_views,
    number,
    percent,
    warnings_of,
)
from viewfuse.selection.messages import label, words
from viewfuse.utils.settings import Spell

_MOST_FEATURES = 1_500
"""More bars would make the page slow; of more the largest of every cluster are shown."""
_MOST_PATTERNS = 15
_FEW_VIEWS = 3
"""So many are listed in a cell."""
_MOST_LISTED = 12
"""With more clusters only the table says what sets each apart."""

_ON_SPLITS = (
    "The strength of a split says how much rarer than in data without structure neighbours lie on different sides; it "
    "is less where views that were left out do not show it. Dotted splits do not stand; sizes are at the right. "
    "Bars show how much the strength depends on which data without structure were drawn."
)


class Section(NamedTuple):
    """A part of the page with its heading, and how the navigation calls it."""

    key: str
    title: str
    body: Html

    def html(self) -> Html:
        """The section as it stands on the page."""
        heading = tag("h2", self.title, id=f"{self.key}-title")
        return tag("section", heading, self.body, id=self.key, aria_labelledby=f"{self.key}-title")


def verdict(run: FinishedRun, spell: Spell, marks: Sequence[str]) -> Html:
    """The first screen: what was found, how sure that is, what sets the clusters apart, what to look at."""
    lines = warnings_of(run, spell)
    look = tag("p", "Nothing in the data or in the training calls for a warning.", class_="fine", id="warnings")
    if lines:
        heading = tag("p", tag("strong", f"Look at this first ({len(lines)})"))
        look = tag("div", heading, tag("ul", *(tag("li", line) for line in lines)), class_="warnings", id="warnings")
    said = paragraphs(how_many(run), *how_sure(run, spell)), look, paragraphs(missing_views(run))
    title = tag("h1", headline(run)), tag("p", f"Run “{run.name}”", class_="run")
    return tag("header", *title, *said, _apart_list(run, marks), id="verdict")


def _apart_list(run: FinishedRun, marks: Sequence[str]) -> Html | None:
    found = {label: words for label, words in apart_in_words(run).items() if words}
    if not found or run.n_clusters > _MOST_LISTED:
        return None
    sizes = run.sizes
    lines = [
        tag("li", charts.swatch(label, marks[label]), tag("b", f"Cluster {run.called(label)}"),
            f", {count(sizes[label], 'sample')}: {'; '.join(words)}")
        for label, words in found.items()
    ]  # fmt: skip
    return join([tag("p", "What sets the clusters apart most:"), tag("ul", *lines, class_="plain")])


def cluster_section(run: FinishedRun, marks: Sequence[str]) -> Section:
    """A row per cluster."""
    header = ("Cluster", "Samples", "Found again", "Uncertain", "Have the view", "Typical samples")
    rows = [_cluster_row(run, one, marks) for one in clusters_of(run)]
    said = note(
        "Found again: the share of its samples that would be in it again if the fit were repeated on other samples of "
        "the same kind, with its 90% interval. Typical samples are the surest ones; press one to see it on the map."
    )
    return Section("clusters", "Clusters", join([said, table("clusters", "Clusters", header, rows)]))


def _cluster_row(run: FinishedRun, one: Cluster, marks: Sequence[str]) -> list[Html]:
    label = join([charts.swatch(one.label, marks[one.label]), tag("b", run.called(one.label))])
    size = join([tag("span", f"{one.samples:,}"), charts.share_bar(one.share, f"{percent(one.share)} of all")])
    return [
        cell(label, one.label),
        cell(size, one.samples, number=True),
        _share(one.confidence, "found again", " to ".join(percent(bound) for bound in one.interval)),
        whole(one.uncertain),
        tag("td", _has(run.views, one.has), class_="has"),
        samples(one.typical, class_="samples"),
    ]


def _has(views: Sequence[str], shares: Sequence[float]) -> Html:
    """Per view the share of samples that have it; of many views their mean and the least."""
    if len(views) <= _FEW_VIEWS:
        return join(tag("div", f"{view} {percent(share)} ") for view, share in zip(views, shares, strict=True))
    least = int(np.argmin(shares))
    words = f"{percent(float(np.mean(shares)))} on average, ", f"least {views[least]}, {percent(shares[least])}"
    return join(tag("div", one) for one in words)


def _share(share: float, what: str, shown: str = "") -> Html:
    """A share with its bar; `shown` is a word for it."""
    if not math.isfinite(share):
        return cell("-", "", number=True)
    words = percent(share)
    bar = charts.share_bar(share, f"{words} {what}")
    word = tag("div", shown) if shown else None
    return cell(join([tag("span", words), bar, word]), f"{share:.4f}", number=True)


def feature_section(run: FinishedRun, marks: Sequence[str]) -> Section | None:
    """Bars per cluster and view."""
    features = features_of(run)
    if not features:
        return None
    most = max(abs(one.difference) for one in features) or 1.0
    per_cluster = max(3, _MOST_FEATURES // max(run.n_clusters, 1))
    parts = [_features_of(run, label, features, per_cluster, most, marks) for label in range(run.n_clusters)]
    said = (
        "A bar to the right: the cluster has more than the other samples; to the left: less. Its length is the "
        "difference in standard deviations of the feature. “Here” and “Elsewhere” are means, in the units of your data."
    )
    if run.explained is not None and len(run.explained) < len(run.ids):
        said += f" They come from {len(run.explained):,} of the {len(run.ids):,} samples, chosen at random."
    return Section("features", "What sets the clusters apart", join([note(said), *parts]))


def _features_of(
    run: FinishedRun, label: int, features: Sequence[Difference], top: int, most: float, marks: Sequence[str]
) -> Html | None:
    own = [one for one in features if one.label == label]
    kept = set(sorted(own, key=lambda one: -abs(one.difference))[:top])
    if not own:
        return None
    by_view = {view: [one for one in own if one in kept and one.view == view] for view in run.views}
    tables = [_view_table(label, view, shown, most) for view, shown in by_view.items() if shown]
    size = count(len(run.of_cluster(label)), "sample")
    title = join([charts.swatch(label, marks[label]), tag("b", f"Cluster {run.called(label)}"), f", {size}"])
    rest = f"The {len(kept)} largest of {len(own)} are shown; features.csv has all." if len(kept) < len(own) else ""
    return unfolding(title, charts.side_by_side(tables), paragraphs(rest), open=label == 0)


def _view_table(label: int, view: str, features: Sequence[Difference], most: float) -> Html:
    rows = []
    for one in features:
        words = f"{one.difference:+.1f}"
        bar = charts.difference_bar(one.difference, most, f"{words} standard deviations")
        means = [cell(_mean(one, mean), f"{mean:.7g}", number=True) for mean in (one.mean, one.mean_of_others)]
        difference = cell(join([tag("span", words), bar]), f"{one.difference:.4f}", number=True)
        rows.append([cell(one.feature), difference, *means])
    return table(f"features-{label}-{view}", view, ("Feature", "Difference", "Here", "Elsewhere"), rows)


def _mean(one: Difference, mean: float) -> str:
    """A mean; of the value of a category, the share of samples that have it."""
    return number(mean) if category_of(one.feature) is None else percent(mean)


def missing_section(run: FinishedRun) -> Section | None:
    """Which views are missing for whom."""
    if len(run.views) < 2:
        return None
    has = run.present.sum(axis=0).tolist()
    per_view = [
        [cell(name), whole(n), whole(len(run.ids) - n), _share(n / len(run.ids), "of the samples have the view")]
        for name, n in zip(run.views, has, strict=True)
    ]
    tables = [
        table("views", "By view", ("View", "Have it", "Lack it", "Share that has it"), per_view),
        _pattern_table(run),
        _views_by_cluster(run),
    ]
    said = note(f"{missing_views(run)} A full box is a view that is there, an empty box one that is missing.")
    return Section("missing", "Missing views", join([said, charts.side_by_side(tables)]))


def _views_by_cluster(run: FinishedRun) -> Html:
    """Shares, darker where more samples have the view."""
    rows = [
        [cell(f"Cluster {run.called(one.label)}", one.label), *(
            tag("td", percent(share), class_=f"number shade{min(4, int(5 * share))}", data_value=f"{share:.4f}")
            for share in one.has)]
        for one in clusters_of(run) if one.samples
    ]  # fmt: skip
    return table("views-by-cluster", "Share that has the view, by cluster", ("Cluster", *run.views), rows)


def _pattern_table(run: FinishedRun) -> Html:
    present, sizes, _ = find_patterns(run.present)
    rows = [
        [cell(charts.present_boxes(there, run.views), " ".join(map(str, map(int, there)))),
         cell(lacking(np.array(there), run.views, longest=200)), whole(size),
         _share(size / len(run.ids), "of all samples")]
        for there, size in zip(present[:_MOST_PATTERNS].tolist(), sizes[:_MOST_PATTERNS].tolist(), strict=True)
    ]  # fmt: skip
    rest = len(sizes) - len(rows)
    more = f"; {count(rest, 'rarer pattern')} {'is' if rest == 1 else 'are'} in missing.csv" if rest > 0 else ""
    return table("patterns", f"By pattern{more}", ("Views", "Which", "Samples", "Share"), rows)


def k_section(run: FinishedRun) -> Section | None:
    """How the number of clusters was chosen, if it was, and which clusters join when there are fewer."""
    merges, number = merges_of(run), run.number
    trees = [charts.merge_tree(merges, run.n_clusters)] if len(merges) > 1 else []
    said, numbers = None, None
    if number is not None:
        sheet = k_sheet(number)
        rows = [[cell(f"{x:.3g}", f"{x:.4g}", number=True) for x in row] for row in sheet.rows]
        header = [name.replace("_", " ").capitalize() for name in sheet.header]
        said, numbers = note(_ON_SPLITS), unfolding("The numbers", table("k", "By split", header, rows))
        trees = [charts.split_tree(number.splits), *trees]
    body = join([paragraphs(how_many(run)), said, charts.side_by_side(trees), numbers])
    return Section("k", "The number of clusters", body) if trees else None


def decision_section(run: FinishedRun, spell: Spell) -> Section | None:
    """What was decided, and from which evidence."""
    if not run.decisions:
        return None
    parts: list[Html] = []
    for one in run.decisions.values():
        evidence = unfolding("Evidence", tag("pre", "\n".join(_flat("", one.evidence))))
        parts += [tag("dt", label(one)), tag("dd", tag("p", words(one, spell)), evidence if one.evidence else None)]
    said = note("What viewfuse decided by itself, from what you gave it, and why.")
    return Section("decisions", "Decisions", join([said, tag("dl", *parts)]))


def _flat(name: str, value: Any) -> Iterator[str]:
    """Nested facts, one per line."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{name} {key}".strip(), inner)
    else:
        shown = f"{value:.4g}" if isinstance(value, float) else value if isinstance(value, str) else as_json(value)
        yield f"{name}: {shown}"


def loss_section(run: FinishedRun) -> Section | None:
    """The losses of training."""
    if run.history is None or not len(run.history) or "epoch" not in run.history.columns:
        return None
    epochs, stages = run.history.numbers("epoch").tolist(), run.history.columns.get("stage", [])
    since = next((epochs[row] for row, stage in enumerate(stages) if stage == "joint"), None)
    drawn = []
    for name in run.history.columns:
        if name not in ("epoch", "stage", "seconds"):
            pairs = [
                (x, y) for x, y in zip(epochs, run.history.numbers(name).tolist(), strict=True) if math.isfinite(y)
            ]
            pairs = pairs[next((row for row, (_, y) in enumerate(pairs) if y), len(pairs)) :]  # zero: not in use yet
            if pairs:
                drawn.append(charts.line_chart(pairs, name.replace("_", " "), "epoch", since=since))
    shaded = " In the shaded epochs the clusters are trained as well." if since is not None else ""
    said = note(f"The total should fall and level off.{shaded}")
    return Section("losses", "Training", join([said, charts.side_by_side(drawn)]))


def reproduce_section(run: FinishedRun) -> Section:
    """How to get the same again."""
    summary = run.summary
    params = summary.get("params") or {}
    rows = [[cell(str(name)), cell(str(value))] for name, value in params.items()]
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    facts = {
        "Command": tag("code", str(summary.get("command", "not known"))),
        "Seed": str(params.get("random_state", "none")),
        "Versions": versions or "not known",
    }
    facts |= {"Training took": f"{summary['seconds']} s"} if "seconds" in summary else {}
    lines = join(one for name, value in facts.items() for one in (tag("dt", name), tag("dd", value)))
    settings = unfolding("All settings", table("settings", "Settings", ("Name", "Value"), rows))
    words = unfolding("A paragraph for a paper", paragraphs(*methods_text(run).split("\n\n")))
    return Section("reproduce", "Reproduce", join([tag("dl", lines), words, settings if rows else None]))
