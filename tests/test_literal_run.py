"""The page of a run that was made by hand: each number beside what was worked out, each sample with its own facts."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np
import pytest

from run_folders import SPLITS, trust_of
from viewfuse.data.views import Views
from viewfuse.errors import DataError
from viewfuse.fitted.clusters import Difference
from viewfuse.io.labels import CsvTable, read_table
from viewfuse.plots.layout import Places
from viewfuse.report import charts, page, sections, tables
from viewfuse.report.comparison import Column, pair_of
from viewfuse.report.page import _fitting, points_of
from viewfuse.report.run_folder import FinishedRun, read_run, write_evidence
from viewfuse.report.tables import (
    clusters_of,
    count,
    features_of,
    k_sheet,
    merges_of,
    number,
    percent,
    tables_of,
    warnings_of,
)
from viewfuse.selection.decision_texts import listed
from viewfuse.selection.decisions import ClusterNumber

IDS = ["s5", "s1", "s9", "s2", "s8", "s3", "s7", "s4", "s6"]
LABELS = np.array([2, 0, 0, 2, 2, 0, 0, 3, 0])
SURE = np.array([0.9, 0.5, 0.8, 0.4, 0.9, 0.7, 0.6, 0.3, 0.80004])
PRESENT = np.array([[1, 1], [0, 1], [1, 0], [1, 1], [1, 0], [0, 1], [1, 1], [0, 1], [1, 1]], dtype=bool)


def table(name, **columns):
    return CsvTable(Path(name), {key: [str(cell) for cell in cells] for key, cells in columns.items()})


FEATURES = [
    (0, "rna", "g1", 0.5, 12.0, 10.0), (0, "rna", "7", -2.0, 1.0, 1234.5), (0, "protein", "p1", 1.5, 3.0, 1.0),
    (2, "rna", "g1", 0.0, 5.0, 5.0), (2, "protein", "p2", -0.25, 0.001, 0.002),
]  # fmt: skip


def a_run(**changes):
    features = dict(zip(Difference._fields, map(list, zip(*FEATURES, strict=True)), strict=True))
    facts = {
        "folder": Path("some/run"), "summary": {"views": ["rna", "protein"], "cluster_sizes": [5, 0, 3, 1]},
        "ids": IDS, "labels": LABELS, "confidence": SURE, "uncertain": SURE < 0.5,
        "present": PRESENT, "map": None, "explained": None, "features": table("features.csv", **features),
        "merges": None, "found_again": [(0.8, "found again"), (0.0, "dissolves"), (0.6, "partly"), (0.1, "dissolves")],
        "history": None, "versions": {},
    }  # fmt: skip
    return FinishedRun(**(facts | changes))


def test_clusters_are_counted_over_their_own_samples():
    found = clusters_of(a_run())
    rows = {0: [1, 2, 5, 6, 8], 1: [], 2: [0, 3, 4], 3: [7]}
    typical = {0: ("s9", "s6", "s3", "s7", "s1"), 1: (), 2: ("s5", "s8", "s2"), 3: ("s4",)}
    for c, own in rows.items():
        one = found[c]
        assert (one.label, one.samples, one.share) == (c, len(own), len(own) / 9)
        assert one.typical == typical[c]  # of equally sure ones, to four digits, the first
        assert one.uncertain == sum(SURE[row] < 0.5 for row in own)
        if own:
            assert one.confidence == pytest.approx(sum(SURE[row] for row in own) / len(own))
            assert one.has == pytest.approx([sum(PRESENT[row, v] for row in own) / len(own) for v in (0, 1)])
    assert found[2].found_again == (0.6, "partly")
    assert math.isnan(clusters_of(a_run(found_again=[]))[2].found_again[0])
    sheet = tables_of(a_run())["clusters.csv"]
    assert sheet.header == [
        "cluster", "samples", "share", "confidence", "uncertain", "found_again", "in_a_word", "low", "high",
        "has_rna", "has_protein", "typical",
    ]  # fmt: skip
    known = {"decisions": {"trust": trust_of(clusters=4)}, **a_run().summary}
    sheet = tables_of(a_run(summary=known))["clusters.csv"]
    assert sheet.rows[3][:7] == (3, 1, 1 / 9, 0.3, 1, 0.1, "dissolves")
    assert sheet.rows[3][7:] == (pytest.approx(0.83), pytest.approx(0.98), 0.0, 1.0, "s4")


def test_tables_of_patterns_features_and_scores():
    sheets = tables_of(a_run())
    assert sheets["missing.csv"].rows == [
        ("all views", 1, 1, 4, 4 / 9), ("without rna", 0, 1, 3, 3 / 9), ("without protein", 1, 0, 2, 2 / 9),
    ]  # fmt: skip
    assert [tuple(one) for one in sheets["features.csv"].rows] == FEATURES
    found = k_sheet(ClusterNumber(3, {}, "clusters", [], "", SPLITS))
    assert found.header[:6] == ("split", "parent", "left", "right", "stands", "strength")
    assert found.header[-4:] == ("held_out_rna", "held_out_protein", "agreement_rna", "agreement_protein")
    assert found.rows[2][:8] == (2, 0, 45, 15, 0, 0.25, 0.1, 0.25)
    assert (found.rows[0][-4], found.rows[0][-2]) == (0.5, 0.8)
    assert math.isnan(found.rows[0][-1])


def shown_cells(html):
    rows = [re.findall(r'data-value="([^"]*)"', row) for row in re.findall(r"<tr>(.*?)</tr>", html, re.DOTALL)]
    return [row for row in rows if row]  # a header has none


def test_the_table_of_clusters_says_the_same():
    body = sections.cluster_section(a_run()).body
    rows = shown_cells(body)
    assert rows[0][:4] == ["0", "5", "0.6800", "0"]
    assert rows[2][:4] == ["2", "3", "0.7333", "1"]
    assert re.findall(r'data-sample="(s\d)"', body) == ["s9", "s6", "s3", "s7", "s1", "s5", "s8", "s2", "s4"]
    assert "<div>rna 60% </div><div>protein 80% </div>" in body
    many = a_run(summary={"views": list("abcd"), "cluster_sizes": [5, 0, 3, 1]}, present=np.hstack([PRESENT, ~PRESENT]))
    assert "<div>50% on average, </div><div>least d, 20%</div>" in sections.cluster_section(many).body


def test_the_table_of_missing_views_counts_who_has_and_who_lacks_them(monkeypatch):
    body = sections.missing_section(a_run()).body
    views, patterns, by_cluster = (shown_cells(part) for part in body.split("<table")[1:])
    assert [row[:3] for row in views] == [["6", "3", "0.6667"], ["7", "2", "0.7778"]]
    assert [row[:3] for row in patterns] == [["1 1", "4", "0.4444"], ["0 1", "3", "0.3333"], ["1 0", "2", "0.2222"]]
    assert by_cluster == [["0", "0.6000", "0.8000"], ["2", "1.0000", "0.6667"], ["3", "0.0000", "1.0000"]]
    assert re.findall(r"shade(\d)", body) == ["3", "4", "4", "3", "0", "4"]
    for shown, words in ((1, "2 rarer patterns are"), (2, "1 rarer pattern is")):
        monkeypatch.setattr(sections, "_MOST_PATTERNS", shown)
        assert f"By pattern; {words} in missing.csv" in sections.missing_section(a_run()).body


def test_features_are_shown_by_cluster_and_view_and_not_too_many(monkeypatch):
    body = sections.feature_section(a_run()).body
    first, second = body.split("<details")[1:]
    assert shown_cells(first) == [
        ["0.5000", "12", "10"], ["-2.0000", "1", "1234.5"], ["1.5000", "3", "1"],
    ]  # fmt: skip
    assert "Cluster 0</b>, 5 samples" in first
    assert " open>" in first.split("<summary")[0]
    assert " open>" not in second.split("<summary")[0]
    assert re.findall(r'<rect x="([\d.]+)" width="([\d.]+)"', first)[0] == ("50.0", "12.5")  # 0.5 of at most 2.0
    monkeypatch.setattr(sections, "_MOST_FEATURES", 4)
    crowd = [(0, "rna", f"g{i}", float(i), 0.0, 0.0) for i in range(5)]
    many = dict(zip(Difference._fields, map(list, zip(*crowd, strict=True)), strict=True))
    body = sections.feature_section(a_run(features=table("f", **many))).body
    assert [row[0] for row in shown_cells(body)] == ["2.0000", "3.0000", "4.0000"]
    assert "The 3 largest of 5 are shown" in body


def test_losses_are_drawn_from_where_they_are_in_use(monkeypatch):
    drawn = []
    monkeypatch.setattr(sections.charts, "line_chart", lambda *given, **more: drawn.append((given, more)) or "")
    history = table("h", epoch=[1, 2, 3], stage=["pre-training", "joint", "joint"], total=[3, 2, 1],
                    late_loss=[0, 0, 4], gone=[0, 0, 0], odd=["nan", 5, 6], seconds=[1, 1, 1])  # fmt: skip
    sections.loss_section(a_run(history=history))
    assert drawn == [
        (([(1, 3), (2, 2), (3, 1)], "total", "epoch"), {"since": 2}),
        (([(3, 4)], "late loss", "epoch"), {"since": 2}),
        (([(2, 5), (3, 6)], "odd", "epoch"), {"since": 2}),
    ]


def test_decisions_settings_and_scores_are_told():
    decisions = {
        "scaling": {
            "why": "scaling: mixed, as it suits",
            "evidence": {"rna": {"gain": 0.12345, "n": [3]}, "kind": "x"},
        },
        "odd_one": {"why": "no label here"},
    }
    summary = {"views": ["rna", "protein"], "cluster_sizes": [5, 0, 3, 1], "decisions": decisions, "seconds": 7,
               "params": {"random_state": 42, "lr": 0.5}, "command": "viewfuse fit x"}  # fmt: skip
    run = a_run(summary=summary, versions={"torch": "2"})
    body = sections.decision_section(run, str).body
    assert re.findall(r"<dt>(.*?)</dt><dd><p>(.*?)</p>", body) == [
        ("scaling", "mixed, as it suits"), ("odd one", "no label here"),
    ]  # fmt: skip
    assert "<pre>rna gain: 0.1235\nrna n: [3]\nkind: x</pre>" in body
    assert body.count("<details>") == 1
    said = sections.reproduce_section(run).body
    assert re.findall(r"<dd>(.*?)</dd>", said) == ["<code>viewfuse fit x</code>", "42", "torch 2", "7 s"]
    assert re.findall(r"<td>(.*?)</td>", said) == ["random_state", "42", "lr", "0.5"]


def test_merges_are_read_with_clusters_of_two_digits():
    ten = {"views": ["rna", "protein"], "cluster_sizes": [1] * 11}
    merges = table("merges.csv", first=["10", "3"], second=["2", "10 2"], distance=[0.5, 1.5], left=[10, 9])
    assert merges_of(a_run(summary=ten, merges=merges)) == [([10], [2], 0.5), ([3], [2, 10], 1.5)]


def test_sentences_say_what_was_counted():
    run = a_run()
    assert tables.headline(run) == "9 samples in 3 clusters"
    assert tables.missing_views(run).startswith("5 samples of 9 lack at least one of the 2 views.")
    assert tables.how_sure(run, str) == ["On average, viewfuse is 66% sure of a sample's cluster."]
    assert tables.how_many(run) == "You asked for 4 clusters; other numbers were not tried."
    assert tables.apart(features_of(run), 0) == [
        "low column 7 in rna (1; others 1,234)", "high p1 in protein (3; others 1)",
    ]  # fmt: skip
    assert tables.apart(features_of(run), 0, top=3)[2] == "high g1 in rna (12; others 10)"
    assert tables.apart(features_of(run), 2) == ["low p2 in protein (0.001; others 0.002)"]
    assert [count(n, "sample") for n in (0, 1, 1234)] == ["0 samples", "1 sample", "1,234 samples"]
    assert [percent(x) for x in (0.004, 0.005, 0.994, 0.995, 0.5)] == ["under 1%", "0%", "99%", "over 99%", "50%"]
    assert [number(x) for x in (999.4, 1000, -1234.5, 0.012345)] == ["999", "1,000", "-1,234", "0.0123"]


def test_warnings_begin_where_their_bounds_are():
    def texts(n=20, tiny=5, lacks=0):
        labels = np.array([1] * tiny + [0] * (n - tiny))
        present = np.ones((n, 2), bool)
        present[:lacks, 0] = False
        sure = np.full(n, 0.9)
        summary = {"views": ["rna", "protein"], "cluster_sizes": [1, 1]}
        return warnings_of(
            a_run(ids=list(map(str, range(n))), labels=labels, present=present, confidence=sure, summary=summary,
                  uncertain=sure < 0, found_again=[]), str,
        )  # fmt: skip

    assert texts() == []
    assert texts(tiny=4) == ["Fewer than 5 samples are in cluster 1: check whether they are outliers."]
    assert texts(tiny=1) == texts(tiny=4)
    assert texts(tiny=10, lacks=5) == []
    assert texts(tiny=10, lacks=6) == [
        "Cluster 1 may be about the missing view rna: 60% of its samples lack it, 0% of the others."
    ]
    assert texts(tiny=4, lacks=4) == texts(tiny=4)
    assert texts(tiny=10, lacks=20) == []  # all lack it
    assert listed([*"1234567"]) == "clusters 1, 2, 3, 4, 5, 6 and others"
    assert listed(["1", "2"]) == "clusters 1 and 2"


MAP_IDS = ["s6", "x", "s9", "s5", "s1", "s4"]
MAP = table("map.csv", id=MAP_IDS, x=[1, 99, 3, -1, 0, 2], y=[10, 99, 30, 20, 10, 18])
WHY = table(
    "samples.csv", id=["s4", "s5", "s9"], second_label=[1, 2, 3], second_confidence=[0.2, 0.3, 0.4],
    weight_rna=[0.1, 0.5, 1], weight_protein=[0.9, 0.5, 0], donors_rna=["s1 s2", "", ""], donors_protein=["", "", "s8"],
)  # fmt: skip


@pytest.mark.parametrize("most", [9, 5, 3])
def test_samples_travel_with_their_own_places_patterns_and_donors(most):
    run = a_run(map=MAP, explained=WHY)
    column = Column("age", (), np.arange(9) * 1.5)
    found = points_of(run, [column], most, others=True)
    points = found["points"]
    there = [name for name in MAP_IDS if name in IDS]
    chosen = sorted(np.random.default_rng(0).permutation(5)[:3].tolist()) if most == 3 else range(5)
    assert points["id"] == [there[place] for place in chosen]
    xy = {"s6": (1, 10), "s9": (3, 30), "s5": (-1, 20), "s1": (0, 10), "s4": (2, 18)}
    left, top = (min(xy[name][axis] for name in points["id"]) for axis in (0, 1))
    span = max(max(xy[name][0] - left, xy[name][1] - top) for name in points["id"])
    for i, name in enumerate(points["id"]):
        row = IDS.index(name)
        assert (points["x"][i], points["y"][i]) == tuple(
            round((xy[name][axis] - low) / span * 4096) for axis, low in ((0, left), (1, top))
        )
        assert points["label"][i] == LABELS[row]
        assert points["confidence"][i] == round(SURE[row], 3)
        assert found["present"][points["pattern"][i]] == PRESENT[row].astype(int).tolist()
        assert found["columns"][0]["values"][i] == 1.5 * row
        why = WHY.ids().index(name) if name in WHY.ids() else None
        assert points["second"][i] == (None if why is None else why + 1)
        assert points["weights"][0][i] == (None if why is None else (0.1, 0.5, 1)[why])
        assert points["donors"][0][i] == ("s1 s2" if name == "s4" else "")
        assert points["donors"][1][i] == ("s8" if name == "s9" else "")
    rest = [name for name in IDS if name not in points["id"]]
    assert found["others"]["id"] == rest
    assert found["others"]["label"] == [int(LABELS[IDS.index(name)]) for name in rest]
    assert "others" not in points_of(run, [], most, others=False)
    assert found["patterns"] == ["all views", "without rna", "without protein"]
    assert (found["n"], found["colors"], found["name"]) == (9, [0, 1, 2, 3], "run")
    assert points_of(run, [], 9, others=False, colors=[3, 1, 0, 2])["colors"] == [3, 1, 0, 2]


def test_without_a_map_a_random_choice_of_samples_is_shown():
    points = points_of(a_run(), [], 4, others=False)["points"]
    chosen = sorted(np.random.default_rng(0).permutation(9)[:4].tolist())
    assert points["id"] == [IDS[row] for row in chosen]
    assert "x" not in points
    assert "others" not in points_of(a_run(), [], 9, others=True)
    assert page._rounded(np.array([0.0004, 0.9996, 0.12345, 1.0, 2.3456])) == [0.001, 0.999, 0.123, 1.0, 2.346]


def test_a_page_that_is_too_large_shows_fewer_samples_and_first_drops_the_list_of_others(monkeypatch):
    asked = []
    monkeypatch.setattr(page, "_SHOWN", (8, 4, 0))
    monkeypatch.setattr(page, "pack", lambda facts: facts["runs"])
    monkeypatch.setattr(page, "filled", lambda name, data=(0,), **_: "é" * data[0])
    sizes = {(8, True): 60, (8, False): 51, (4, True): 50, (4, False): 9, (0, True): 9, (0, False): 9}

    def points(most, others):
        asked.append((most, others))
        return [sizes[most, others]]

    monkeypatch.setattr(page, "MOST_BYTES", 100)
    assert len(_fitting(points, colors={})) == 50
    assert asked == [(8, True), (8, False), (4, True)]


def test_colours_of_a_second_run_are_those_of_matched_clusters():
    """The first, of three clusters, has nothing in its second one; the second run has four."""
    labels = np.array([2, 2, 0, 0, 0, 2, 2, 0, 0])
    one = a_run(labels=labels, summary={"views": ["rna", "protein"], "cluster_sizes": [5, 0, 4]})
    two = a_run(labels=np.where(labels == 2, 0, 2), folder=Path("some/other"))
    content = page._pair_content(pair_of(one, two), str)
    assert [run["colors"] for run in content["points"](9, False)] == [[0, 1, 2], [2, 3, 0, 4]]


def test_evidence_is_of_the_samples_that_have_a_place(tmp_path):
    views = Views({"a": np.arange(6.0)[:, None]}, ids=list("fedcba"))
    places = Places(np.array([1, 2, 5]), np.array([[1.0, 2, 3], [4, 5, 6]], np.float32), 6)
    explained = []

    class Model:
        def complete(self, given):
            return given.replace(ids=np.array([f"{name}!" for name in given.ids])), []

        def explain(self, given):
            explained.append(given)
            raise DataError("seen")

    with pytest.raises(DataError, match="seen"):
        write_evidence(tmp_path, Model(), views, places)
    assert explained[0].ids.tolist() == ["e!", "d!", "a!"]
    assert explained[0].arrays[0].ravel().tolist() == [1, 2, 5]
    with (tmp_path / "map.csv").open() as file:
        assert list(csv.reader(file)) == [
            ["id", "x", "y"],
            *([n, f"{x}.0000", f"{x + 3}.0000"] for n, x in zip("eda", (1, 2, 3), strict=True)),
        ]


def test_cells_of_tables_are_named_by_their_data_row(tmp_path):
    (tmp_path / "t.csv").write_text("id, n\n'=1,1\nb,2.5\n\nc,x\n")
    found = read_table(tmp_path / "t.csv")
    assert found.columns == {"id": ["=1", "b", "c"], "n": ["1", "2.5", "x"]}
    assert len(found) == 3
    with pytest.raises(DataError, match="data row 3, column n: 'x' is no number"):
        found.numbers("n")
    assert table("t", n=[1, 2.0]).whole_numbers("n").tolist() == [1, 2]
    for odd in (2.5, math.inf):
        with pytest.raises(DataError, match="not all are whole numbers"):
            table("t", n=[1, odd]).whole_numbers("n")


def test_labels_belong_to_the_samples_in_their_order(tmp_path):
    (tmp_path / "summary.json").write_text('{"views": ["v w", "v"], "cluster_sizes": [1, 1]}')
    rows = "a,0,0.75,0,v\nb,1,0.25,1,v w v\n"
    (tmp_path / "labels.csv").write_text(f"id,label,confidence,uncertain,views_present\n{rows}")
    run = read_run(tmp_path)
    assert (run.ids, run.labels.tolist(), run.confidence.tolist()) == (["a", "b"], [0, 1], [0.75, 0.25])
    assert run.uncertain.tolist() == [False, True]
    assert run.present.tolist() == [[False, True], [True, True]]
    assert run.n_clusters == 2


def test_cuts_of_the_merge_tree_by_hand():
    merges = [([1], [3], 1.0), ([0], [2], 2.0), ([0, 2], [1, 3], 3.0)]
    assert charts.cuts_of(merges, 4) == {2: [0, 1, 0, 1], 3: [0, 1, 2, 1], 4: [0, 1, 2, 3]}
    assert charts.cuts_of([], 1) == {}
    drawn = str(charts.merge_tree(merges, 4))
    assert [part.split('"')[0] for part in drawn.split('data-cut="')[1:]] == ["4", "3", "2", "2", "3", "4"]
    chain = [([*range(step)], [step], float(step)) for step in range(1, 24)]
    buttons = [part.split("<")[0] for part in str(charts.merge_tree(chain, 24)).split('<button type="button"')[1:]]
    assert [one.split(">")[1] for one in buttons] == [str(k) for k in range(2, 22)]
