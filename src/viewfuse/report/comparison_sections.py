"""The sections that compare: with what is known of the samples, and with another run."""

from __future__ import annotations

from collections.abc import Sequence

from viewfuse.report import charts
from viewfuse.report.comparison import Column, Crossing, RunPair, crossed_with
from viewfuse.report.html import Html, cell, join, paragraphs, table, tag
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.sections import Section
from viewfuse.report.tables import clusters_of
from viewfuse.report.verdict import count, headline, how_sure, percent
from viewfuse.utils.settings import Spell

_MOST_COLUMNS = 20
_MOST_MOVED = 200
_SHADES = 5


def known_section(run: FinishedRun, columns: Sequence[Column], marks: Sequence[str]) -> Section | None:
    """The clusters beside every known column of classes."""
    if not columns:
        return None
    crossings = [(column, crossed_with(run, column)) for column in columns]
    parts = [_known(column.name, crossing, marks) for column, crossing in crossings if crossing is not None]
    others = [column.name for column, crossing in crossings if crossing is None]
    note = (
        "The clusters were found without these columns. Strongly coloured cells hold a large share of their "
        "cluster. Framed cells are the best one-to-one match, and accuracy is the share of the samples in "
        "them. NMI and ARI are 1 for the same groups; ARI is 0 for groups that agree no more than by chance."
    )
    rest = f"Not compared, but a colour on the map: {', '.join(others)}." if others else ""
    return Section(
        "known", "Compared with what you know", join([tag("p", note, class_="note"), *parts, paragraphs(rest)])
    )


def _known(name: str, crossing: Crossing, marks: Sequence[str]) -> Html:
    scores = crossing.scores()
    sure = ", ".join(f"{score} {value:.3f}" for score, value in scores.items())
    words = (
        f"Of {count(len(crossing.first), 'sample')} whose {name} is known, {percent(scores['accuracy'])} are in the "
    )
    words += f"matching cluster ({sure})."
    return join([tag("h3", name), tag("p", words), _crossing_table(f"known-{name}", name, crossing, marks)])


def _crossing_table(key: str, caption: str, crossing: Crossing, marks: Sequence[str]) -> Html:
    """Counts; columns in the order of the clusters that they are matched with."""
    partners = [crossing.matched[row] for row in sorted(crossing.matched)]
    order = [*partners, *(c for c in range(len(crossing.columns)) if c not in partners)]
    shown = order[:_MOST_COLUMNS]
    rows = [_crossing_row(crossing, row, shown, marks) for row in range(len(crossing.rows))]
    more = f"; {len(order) - len(shown)} more columns are in the CSV file" if len(order) > len(shown) else ""
    return table(key, f"{caption}{more}", ["Cluster", *(crossing.columns[c] for c in shown)], rows)


def _crossing_row(crossing: Crossing, row: int, shown: Sequence[int], marks: Sequence[str]) -> list[Html]:
    counts = crossing.counts[row]
    total = max(int(counts.sum()), 1)
    cells = []
    for column in shown:
        n = int(counts[column])
        name = f"number shade{min(_SHADES, -(-_SHADES * n // total))}"
        name += " matched" if crossing.matched.get(row) == column else ""
        cells.append(tag("td", f"{n:,}", class_=name, data_value=n))
    return [cell(join([charts.swatch(row, marks[row]), tag("b", crossing.rows[row])]), crossing.rows[row]), *cells]


def pair_verdict(pair: RunPair, spell: Spell) -> Html:
    """The first screen of two runs: how many samples moved, and what each run says of itself."""
    n, moved = len(pair.first), len(pair.moved)
    title = f"{count(moved, 'sample')} of {n:,} moved" if moved else f"None of {n:,} samples moved"
    scores = pair.crossing.scores()
    words = (
        f"Before: “{pair.runs[0].name}”; after: “{pair.runs[1].name}”. Their clusters are matched so that as many "
        f"samples as possible stay: {percent(scores['accuracy'])} of those in both runs do. The adjusted Rand index is "
        f"{scores['ARI']:.3f} (1 means the same clusters, 0 means no more than chance)."
    )
    only = [f"{len(run.ids) - n:,} only in “{run.name}”" for run in pair.runs if len(run.ids) > n]
    extra = f"Samples in one run only are not counted: {', '.join(only)}." if only else ""
    runs = [
        tag("div", tag("h2", run.name), tag("p", tag("b", headline(run))), paragraphs(*how_sure(run, spell)))
        for run in pair.runs
    ]
    return tag("header", tag("h1", title), paragraphs(words, extra), tag("div", *runs, class_="pair"), id="verdict")


def pair_sections(pair: RunPair, marks: Sequence[str]) -> list[Section]:
    """How the clusters of two runs belong together, and who moved."""
    one, two = pair.runs
    words = (
        f"Rows are clusters of “{one.name}”, columns those of “{two.name}”. A framed cell is the same cluster in both."
    )
    note = tag("p", words, class_="note")
    crossing = _crossing_table("crossing", "Samples by cluster in both runs", pair.crossing, marks)
    facts = [_facts_table(pair)]
    return [
        Section("crossing", "Cluster by cluster", join([note, crossing, *facts])),
        Section("moved", "Who moved", _moved_table(pair)),
    ]


def _facts_table(pair: RunPair) -> Html:
    first, second = (clusters_of(run) for run in pair.runs)
    header = ["Cluster before", "Cluster after", "Samples before", "Samples after"]
    rows = []
    for before, after in ((first[a], second[b]) for a, b in sorted(pair.crossing.matched.items())):
        labels = [cell(str(one.label), one.label) for one in (before, after)]
        sizes = [cell(f"{one.samples:,}", one.samples, number=True) for one in (before, after)]
        sure = [cell(percent(one.confidence), f"{one.confidence:.4f}", number=True) for one in (before, after)]
        rows.append([*labels, *sizes, *sure])
    return table("matched", "Matched clusters", [*header, "Confidence before", "Confidence after"], rows)


def _moved_table(pair: RunPair) -> Html:
    sheet = list(pair.sheet().rows)
    if not sheet:
        return tag("p", "No sample moved: each is in the matched cluster.")
    sheet.sort(key=lambda row: -min(row[3], row[4]))
    rows = [
        [tag("td", tag("button", name, type="button", class_="sample", data_sample=name), data_value=name),
         *(cell(str(label), label) for label in labels), *(cell(percent(x), f"{x:.4f}", number=True) for x in sure)]
        for name, *labels, sure in ((row[0], row[1], row[2], row[3:]) for row in sheet[:_MOST_MOVED])
    ]  # fmt: skip
    words = f"The {len(rows)} surest of {len(sheet)} are listed; moved.csv has all. " if len(sheet) > len(rows) else ""
    note = tag("p", f"{words}Those at the top were sure of their cluster both times, and still moved.", class_="note")
    header = ("Sample", "Cluster before", "Cluster after", "Confidence before", "Confidence after")
    return join([note, table("moved", "Samples that moved", header, rows)])
