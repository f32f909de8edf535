"""The map and the look-up of samples: the ground on which the script of the page works."""

from __future__ import annotations

from collections.abc import Sequence

from viewfuse.report.html import Html, join, tag
from viewfuse.report.run_folder import FinishedRun
from viewfuse.report.sections import Section
from viewfuse.report.verdict import count

_HELP = (
    "Each mark is a sample; samples that are alike lie close together. Distances between far groups mean little. "
    "A hollow mark lacks a view. Press a mark to see why the sample is there."
)
_KEYS = (
    "Keys on the map: arrows move, + and - zoom, 0 shows all, n and p step through the samples. The wheel zooms once "
    "the map was pressed. Press a group in the legend to select its samples, or draw around some with “Lasso”."
)


def map_section(runs: Sequence[FinishedRun]) -> Section:
    """Find a sample, see it on the map, and read why it is there."""
    maps = [_map(number, run) for number, run in enumerate(runs) if run.map is not None]
    without = [f"“{run.name}” was written without a map; fit it again to get one." for run in runs if run.map is None]
    body = [
        _search(),
        tag("p", _HELP, class_="note"),
        tag("div", *maps, tag("div", id="lookup", aria_live="polite", tabindex="-1"), class_=f"maps maps{len(runs)}"),
        tag("p", _KEYS, class_="note"),
        *(tag("p", line) for line in without),
        tag("noscript", tag("p", "The map and the search need JavaScript; map.png and labels.csv have the same.")),
    ]
    return Section("map", "Map and samples", join(body))


def _search() -> Html:
    box = tag("input", id="search", type="search", autocomplete="off", spellcheck="false", aria_controls="found",
              placeholder="id of a sample")  # fmt: skip
    label = tag("label", "Find a sample: ", box)
    return tag("div", label, tag("ul", id="found", class_="plain", aria_label="Samples found"), class_="search")


def _button(name: str, title: str, text: str) -> Html:
    return tag("button", text, type="button", data_do=name, title=title, aria_label=title)


def _map(number: int, run: FinishedRun) -> Html:
    words = f"Map of {count(len(run.ids), 'sample')} in {count(run.n_clusters, 'cluster')}"
    words += "; the table of clusters says the same in numbers"
    select = tag("label", "Colour by ", tag("select", class_="by"))
    tools = [
        _button("in", "Zoom in", "+"), _button("out", "Zoom out", "\u2212"), _button("all", "Show all", "All"),
        tag("button", "Lasso", type="button", data_do="lasso", aria_pressed="false"),
        tag("button", "Clear selection", type="button", data_do="clear", disabled=True),
        tag("button", "Save selection as CSV", type="button", data_do="save", disabled=True),
    ]  # fmt: skip
    ground = tag("canvas", words, tabindex="0", role="img", aria_label=words)
    field = tag("div", ground, tag("div", class_="tip", hidden=True), class_="field")
    parts = [
        tag("div", select, *tools, class_="tools"), field, tag("p", class_="status", role="status"),
        tag("div", class_="legend", role="group", aria_label="Legend"),
    ]  # fmt: skip
    return tag("div", tag("h3", run.name), *parts, class_="map", data_run=number)
