"""The report: what it says, that nothing in the data can run, that it stays small, and that tables say the same."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from run_folders import SPLITS, trust_of, write_run
from viewfuse import metrics
from viewfuse.errors import DataError, SettingError, SuspiciousDataWarning
from viewfuse.report import page
from viewfuse.report.comparison import Column, columns_for, crossed_with, pair_of, read_known
from viewfuse.report.html import templates
from viewfuse.report.page import points_of, write_report
from viewfuse.report.run_folder import _subset, read_run
from viewfuse.report.sections import k_section
from viewfuse.report.tables import (
    apart_in_words,
    clusters_of,
    headline,
    how_many,
    how_sure,
    merges_of,
    methods_text,
    percent,
    warnings_of,
)
from viewfuse.selection.decision_texts import records, words
from viewfuse.selection.decisions import ClusterNumber, KnownClasses, KnownPairs, Outliers, Update

FAR = Outliers(1, {"rna": {"s7": 9.0}}, 9)

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    "=1+1",
    '"quoted", with a comma',
    "日本",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture(scope="module")
def text(folder, tmp_path_factory):
    out = tmp_path_factory.mktemp("pages") / "report.html"
    write_report([folder], out)
    return out.read_text()


def payload(text: str) -> dict:
    packed = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', text).group(1)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def rows_of(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_page_loads_nothing_and_runs_only_its_own_script(text):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text).group(1)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    for kind, opening in (("style", "<style>"), ("script", "<script>")):
        assert text.count(opening) == 1
        inside = text.split(opening)[1].split(f"</{kind}>")[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert not re.search(r"https?://", text)
    assert " style=" not in text.split("<script>")[0]  # the policy would not let it through


def test_samples_travel_to_the_script_whole(folder, text):
    run, (found,) = read_run(folder), payload(text)["runs"]
    points = found["points"]
    assert points["id"] == [run.ids[run.ids.index(name)] for name in points["id"]]
    assert sorted(points["id"]) == sorted(run.ids)
    row = {name: i for i, name in enumerate(run.ids)}
    order = [row[name] for name in points["id"]]
    assert points["label"] == run.labels[order].tolist()
    assert np.allclose(points["confidence"], run.confidence[order], atol=1e-3)
    assert [found["present"][p] for p in points["pattern"]] == run.present[order].astype(int).tolist()
    assert len(points["weights"]) == len(points["donors"]) == 2
    lacks = [points["donors"][0][i] != "" for i in range(60)]
    assert lacks == (~run.present[order][:, 0]).tolist()
    assert max(points["x"]) <= 4096 == max(points["x"] + points["y"])


def test_hostile_ids_views_and_features_stay_text(tmp_path):
    folder = write_run(tmp_path / "<b>run", n=len(HOSTILE), ids=HOSTILE, views=("<i>rna", "pro\"tein'"), clusters=2)
    (tmp_path / "known.csv").write_text("id,<u>class\n日本,<s>a\n=1+1,b\n")
    write_report([folder], tmp_path / "report.html", tmp_path / "known.csv")
    found = (tmp_path / "report.html").read_text()
    before_script = found.split("<script")[0]
    assert not re.search(r"<(img|b>run|i>rna|u>class|s>a)", found)
    assert "&lt;img src=x onerror=alert(1)&gt;" in before_script
    assert found.count("</script>") == 2
    (sent,) = payload(found)["runs"]
    assert sorted(sent["points"]["id"]) == sorted(HOSTILE)
    assert {"'=1+1"} & set(rows_of(folder / "labels.csv")[2].values())  # and no spreadsheet runs them


def test_numbers_of_the_page_are_in_files(folder, tmp_path):
    data = write_report([folder], tmp_path / "other.html")
    assert data == tmp_path / "other_data"
    names = ["clusters.csv", "decisions.csv", "features.csv", "losses.csv", "merges.csv", "missing.csv"]
    latex = ["clusters.tex", "features.tex", "merges.tex", "missing.tex"]  # no page of a paper holds the others
    assert sorted(path.name for path in data.iterdir()) == sorted([*names, *latex, "methods.txt"])
    run, rows = read_run(folder), rows_of(data / "clusters.csv")
    assert [int(row["samples"]) for row in rows] == np.bincount(run.labels).tolist()
    for label, row in enumerate(rows):
        inside = run.labels == label
        assert float(row["confidence"]) == pytest.approx(run.confidence[inside].mean(), abs=1e-4)
        assert (row["low"], row["high"]) == ("0.8300", "0.9800")
        assert float(row["has_rna"]) == pytest.approx(run.present[inside, 0].mean(), abs=1e-4)
        surest = run.confidence[inside].max()
        assert run.confidence[run.ids.index(row["typical"].split()[0])] == surest
    patterns = rows_of(data / "missing.csv")
    assert sum(int(row["samples"]) for row in patterns) == 60
    both = next(row for row in patterns if row["views"] == "all views")
    assert int(both["samples"]) == run.present.all(axis=1).sum()


def test_a_large_run_is_thinned_until_the_page_is_small_enough(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "run", n=400)
    write_report([folder], tmp_path / "whole.html")
    bare = len((tmp_path / "whole.html").read_bytes())
    assert payload((tmp_path / "whole.html").read_text())["runs"][0].get("others") is None
    monkeypatch.setattr(page, "_SHOWN", (100, 0))
    write_report([folder], tmp_path / "part.html")
    (found,) = payload((tmp_path / "part.html").read_text())["runs"]
    assert (found["n"], len(found["points"]["id"]), len(found["others"]["id"])) == (400, 100, 300)
    assert len({*found["points"]["id"], *found["others"]["id"]}) == 400
    monkeypatch.setattr(page, "MOST_BYTES", bare - 9_000)
    monkeypatch.setattr(page, "_SHOWN", (400, 0))
    write_report([folder], tmp_path / "small.html")
    assert len((tmp_path / "small.html").read_bytes()) <= bare - 9_000
    assert payload((tmp_path / "small.html").read_text())["runs"][0]["points"]["id"] == []


@pytest.mark.parametrize(("levels", "is_compared"), [(1, False), (2, True), (50, True), (51, False)])
def test_columns_of_two_to_fifty_classes_are_compared(folder, levels, is_compared):
    run = read_run(folder)
    names = tuple(f"c{i}" for i in range(levels))
    column = Column("class", names, (np.arange(len(run.labels)) % levels).astype(float))
    assert (crossed_with(run, column) is not None) == is_compared


def test_known_columns_are_compared_as_score_compares(folder, tmp_path):
    run = read_run(folder)
    lines = [f"{name},{'abc'[run.labels[i]] if i % 4 else 'a'},{i / 7}" for i, name in enumerate(run.ids[:50])]
    (tmp_path / "known.csv").write_text("sample,class,age\n" + "\n".join([*lines, "nobody,a,3"]))
    known, age = columns_for(run, read_known(tmp_path / "known.csv"))
    assert (known.levels, age.levels) == (("a", "b", "c"), ())
    assert np.isnan(age.values[50:]).all()
    scores = crossed_with(run, known).scores()
    truth = [line.split(",")[1] for line in lines]
    assert scores["accuracy"] == pytest.approx(metrics.clustering_accuracy(truth, run.labels[:50]))
    assert scores["ARI"] == pytest.approx(metrics.ari(truth, run.labels[:50]))
    data = write_report([folder], tmp_path / "report.html", tmp_path / "known.csv")
    (row,) = rows_of(data / "scores.csv")
    assert (row["column"], row["samples"]) == ("class", "50")
    crossing = rows_of(data / "known_class.csv")
    assert sum(int(line[name]) for line in crossing for name in "abc") == 50
    text = (tmp_path / "report.html").read_text()
    assert f"accuracy {scores['accuracy']:.3f}" in text
    assert "Not compared, but a colour on the map: age." in text
    assert [one["name"] for one in payload(text)["runs"][0]["columns"]] == ["class", "age", "novelty"]


def test_known_columns_take_minus_one_and_empty_cells_for_nothing(folder, tmp_path, capsys):
    """-1 is a class beside another number below 0, and where there is only one other class."""
    run = read_run(folder)
    cells = [(" NA ", "-1", "-1", "none"), ("x", "0", "-2", "a"), ("y", "1", "0", "<NA>"), ("y", "-1", "0", "a")]
    lines = [
        f" {name} ,{','.join([*own, str(i % 2 * 2 - 1)])}"
        for i, (name, own) in enumerate(zip(run.ids[:4], cells, strict=True))
    ]
    (tmp_path / "known.csv").write_text("id,kind,class,copies,drug,side\n" + "\n".join(lines))
    kind, group, copies, drug, side = columns_for(run, read_known(tmp_path / "known.csv"))
    assert [one.levels for one in (kind, group, copies, drug, side)] == [
        ("x", "y"), ("0", "1"), ("-2", "-1", "0"), ("a", "none"), ("-1", "1"),
    ]  # fmt: skip
    assert np.isnan([kind.values[0], group.values[0], group.values[3], drug.values[2]]).all()
    assert capsys.readouterr().err == f"{tmp_path / 'known.csv'}, column 'class': 2 of -1 count as not known\n"


def test_known_columns_that_do_not_belong_to_the_run(folder, tmp_path):
    run = read_run(folder)
    (tmp_path / "others.csv").write_text("id,class\nx,1\n")
    with pytest.raises(DataError, match=r"others\.csv and .*first share no id"):
        columns_for(run, read_known(tmp_path / "others.csv"))
    (tmp_path / "few.csv").write_text("id,class\n" + "\n".join(f"{name},1" for name in ["s1", *map(str, range(9))]))
    with pytest.warns(SuspiciousDataWarning, match="only 1 of 60 and 10 ids are in both"):
        columns_for(run, read_known(tmp_path / "few.csv"))
    (tmp_path / "one.csv").write_text("id\ns1\n")
    with pytest.raises(DataError, match="has one column only"):
        read_known(tmp_path / "one.csv")


def test_two_runs_are_matched_and_those_who_moved_are_told(tmp_path):
    first = write_run(tmp_path / "first", n=60)
    second = write_run(tmp_path / "second", n=50)
    rows = rows_of(first / "labels.csv")[:50]
    swapped = [{**row, "label": {"0": "2", "1": "0", "2": "1"}[row["label"]]} for row in rows]
    moved = swapped[7]
    moved["label"] = str((int(moved["label"]) + 1) % 3)
    with (second / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(swapped)
    pair = pair_of(read_run(first), read_run(second))
    assert pair.crossing.matched == {0: 2, 1: 0, 2: 1}
    data = write_report([first, second], tmp_path / "pair.html")
    assert [row["id"] for row in rows_of(data / "moved.csv")] == [moved["id"]]
    text = (tmp_path / "pair.html").read_text()
    assert "1 sample of 50 moved" in text
    assert "10 are only in “first”" in text
    one, two = payload(text)["runs"]
    assert (one["colors"], two["colors"]) == ([0, 1, 2], [1, 2, 0])  # a cluster has one colour in both
    levels = two["columns"][0]["values"]
    assert [two["points"]["id"][i] for i, level in enumerate(levels) if level == 1] == [moved["id"]]


def test_two_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    pair = pair_of(*(read_run(write_run(tmp_path / name / "run", n=9)) for name in "ab"))
    assert [run.name for run in pair.runs] == ["a/run", "b/run"]


def test_the_page_can_be_shown_without_being_written(folder, text):
    shown = page.run_page(read_run(folder))
    assert payload(shown) == payload(text)
    assert "is also in files beside it" in text
    assert "is also in files beside it" not in shown


def test_reports_are_about_one_run_or_two(folder, tmp_path):
    for folders, known in (([], None), ([folder] * 3, None), ([folder] * 2, tmp_path / "known.csv")):
        with pytest.raises(SettingError, match="about one run"):
            write_report(folders, tmp_path / "report.html", known)


def test_nearly_sure_is_not_sent_as_sure(folder, tmp_path):
    """A sample of 0.9997 read "100% sure", and its second-best cluster "0%"."""
    run = read_run(folder)
    sure = np.array([0.9997, 0.0002, 1.0, 0.0, 0.12345])
    run.confidence[: len(sure)] = sure
    assert points_of(run, [], 60, others=False)["points"]["confidence"][: len(sure)] == [0.999, 0.001, 1.0, 0.0, 0.123]


def test_the_strength_of_splits_is_explained(tmp_path):
    chosen = records(ClusterNumber(3, {}, "clusters", [], "", SPLITS))["n_clusters"]
    for name, decided, told in (("auto", {"n_clusters": chosen}, True), ("set", {}, False)):
        run = read_run(write_run(tmp_path / name, decisions=decided))
        found = k_section(run)
        assert ("rarer than in data without structure" in str(found and found.body)) == told


def test_the_verdict_says_how_sure_that_is(tmp_path):
    run = read_run(write_run(tmp_path / "sure"))
    (sure,) = how_sure(run, str)
    assert sure.startswith(
        "Trust in these clusters \N{EN DASH} high: repeated fits would put 93% of the samples (83 to 98%) into the"
    )
    assert all(re.search(r"(high|low) \w+ in (rna|protein) \(", line) for line in apart_in_words(run)[0])
    doubt = {"trust": trust_of("some", again=0.7, reasons=[{"name": "range_end", "number": 3}])}
    run = read_run(write_run(tmp_path / "unsure", decisions=doubt, remarks=["view rna: 2 columns never change"]))
    assert how_sure(run, str)[1] == "3 is the largest number of clusters that was tried."
    first, *_, last = warnings_of(run, lambda setting: f"--{setting.name}")
    assert first == "Let --cluster_range end at a larger number."
    assert last == "View rna: 2 columns never change."


def test_what_is_known_and_not_followed_comes_first(tmp_path):
    kept = KnownPairs(2, {"cannot_link": [["s1", "s2"]]}, 1, {"cannot_link": [["s1", "s2"]]})
    found = KnownClasses(3, {"b": ["s1"], "cd8": ["s2", "s3"]}, 9, 1, {}, with_class={"b": 1, "cd8": 0})
    decisions = records(kept, found, FAR)
    said = warnings_of(read_run(write_run(tmp_path / "run", decisions=decisions, remarks=["rna, 'x', ..."])), str)
    assert said[-4:-1] == [
        f"{name}: {words(one)}." for name, one in {"Outliers": FAR, "Hints": found, "Pairs": kept}.items()
    ]
    assert "1 of 9 samples lies farther" in said[-4]
    assert said[-1] == "rna, 'x', ..."
    fine = replace(found, with_class={"b": 1, "cd8": 2})
    said = warnings_of(read_run(write_run(tmp_path / "fine", decisions=records(fine, replace(kept, kept=2)))), str)
    assert not [one for one in said if one.startswith(("Hints", "Pairs"))]


def test_warnings_tell_of_tiny_empty_and_view_led_clusters(tmp_path):
    folder = write_run(tmp_path / "run", n=40, clusters=4, cluster_sizes=[0] * 5)
    rows = rows_of(folder / "labels.csv")
    for i, row in enumerate(rows):
        row["label"] = "0" if i < 3 else "1" if i < 20 else "2"
        row["views_present"] = "protein" if row["label"] == "1" else "rna protein"
        row["confidence"], row["uncertain"] = ("0.4", "1") if row["label"] == "2" else ("0.9", "0")
    with (folder / "labels.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    found = warnings_of(read_run(folder), str)
    assert found == [
        "2 clusters of 5 hold no sample; ask for fewer clusters.",
        "Fewer than 5 samples are in cluster 0: check whether they are outliers.",
        "Cluster 1 may be about the missing view rna: 100% of its samples lack it, 0% of the others.",
    ]


def test_the_choice_of_k_is_shown_where_there_was_one(folder, text, tmp_path):
    assert "The tree that was tested" not in text
    decided = {**records(ClusterNumber(3, {}, "clusters", [2], "", SPLITS)), "trust": trust_of()}
    data = write_report([write_run(tmp_path / "run", decisions=decided)], tmp_path / "k.html")
    found = (tmp_path / "k.html").read_text()
    assert "The tree that was tested" in found
    assert "The number of clusters: 3, as 2 splits of the tree stand" in found
    assert found.count("line fallen") == 1
    assert "other numbers were not tried" not in found
    assert [row["strength"] for row in rows_of(data / "k.csv")] == ["2.5", "1.25", "0.25"]


def test_parts_that_an_older_version_did_not_write_are_left_out(tmp_path):
    folder = write_run(tmp_path / "run")
    for name in ("map.csv", "history.csv", *(folder / "explanation").iterdir()):
        (folder / name).unlink()
    write_report([folder], tmp_path / "report.html")
    found = (tmp_path / "report.html").read_text()
    assert "was written without a map" in found
    assert all(f'id="{key}"' not in found for key in ("features", "losses", "k"))
    assert len(payload(found)["runs"][0]["points"]["id"]) == 60


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("summary.json", None, "holds no summary.json; give the folder that viewfuse fit wrote"),
        ("summary.json", "{", "summary.json cannot be read"),
        ("summary.json", "[]", "does not say what was fitted"),
        ("labels.csv", None, "labels.csv is not there"),
        ("labels.csv", "id,label\ns1,0\n", r"labels.csv has no column 'confidence'"),
        ("labels.csv", "id,label,confidence,uncertain,views_present\ns1,9,1,0,rna\n", "labels that .* does not know"),
        ("labels.csv", "id,label,confidence,uncertain,views_present\ns1,x,1,0,rna\n", "row 1, column label: 'x' is no"),
        ("labels.csv", "id,label,confidence,uncertain,views_present\ns1,0,1,0,dna\n", "'dna' are not views of the run"),
        ("labels.csv", "id,label,confidence,uncertain,views_present\ns1,0,1\n", "data row 1 has 3 cells and not 5"),
        ("map.csv", "", "has no header"),
    ],
)
def test_damaged_folders_are_refused_with_the_place(tmp_path, file, text, message):
    folder = write_run(tmp_path / "run", n=1)
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    with pytest.raises(DataError, match=message):
        read_run(folder)


def test_the_merge_tree_is_drawn_with_every_cluster(folder, text):
    assert merges_of(read_run(folder)) == [([0], [1], 1.0), ([0, 1], [2], 2.0)]
    tree = text.split("Merge tree: ")[1].split("</figure>")[0]
    assert re.findall(r"<text[^>]*>(\d+)</text>", tree) == ["0", "1", "2"]
    assert tree.count("<polyline") == 2
    assert 'aria-label="Join first: 0 and 1; then 0+1 and 2"' in tree


@pytest.mark.parametrize("rows", ["0,7,1,2", "0,0,1,2", "x,1,1,2", "0,1,1,2\n0,2,2,1"])
def test_merges_of_clusters_that_there_are_not(tmp_path, rows):
    folder = write_run(tmp_path / "run", n=5)
    (folder / "explanation" / "merges.csv").write_text(f"first,second,distance,left\n{rows}\n")
    with pytest.raises(DataError, match=r"merges\.csv, data row \d: .* are no groups of clusters"):
        merges_of(read_run(folder))


@given(st.lists(st.sampled_from(["a", "b", "a b", "rna", "rna 2", " "]), unique=True, min_size=1), st.data())
def test_views_are_read_from_the_text_that_joins_them(names, data):
    chosen = data.draw(st.lists(st.booleans(), min_size=len(names), max_size=len(names)))
    text = " ".join(name for name, is_there in zip(names, chosen, strict=True) if is_there)
    found = _subset(text, names)
    assert found is not None
    assert " ".join(name for name, is_there in zip(names, found, strict=True) if is_there) == text


def test_shares_are_never_rounded_to_what_they_are_not():
    assert [percent(share) for share in (0, 0.001, 0.5, 0.997, 1)] == ["0%", "under 1%", "50%", "over 99%", "100%"]


def test_templates_escape_what_comes_from_the_data():
    made = templates().get_template("parts.html").module.sample('<i>"')
    shown = "&lt;i&gt;&#34;"
    assert made == f'<button type="button" class="sample" data-sample="{shown}">{shown}</button>'


def test_clusters_without_samples_have_no_means(tmp_path):
    run = read_run(write_run(tmp_path / "run", cluster_sizes=[30, 20, 10, 0]))
    assert clusters_of(run)[3][:3] == (3, 0, 0.0)
    assert np.isnan(clusters_of(run)[3].confidence)


def test_a_number_that_an_update_or_hints_made_is_not_that_of_the_tree(tmp_path):
    chosen = ClusterNumber(3, {}, "clusters", [], "", SPLITS)
    update = Update(9, {"samples": 51, "stayed": 1.0}, [], [{"label": 3}], [], [])
    hints = KnownClasses(3, {"b": ["s1"], "cd8": ["s2", "s3"]}, 9, 1, {}, with_class={"b": 1, "cd8": 0})
    tree = "chosen without labels by a tested tree of splits"
    for clusters, decisions, start, paper in (
        (3, [chosen], "The number of clusters: 3, as ", f"The number of clusters, 3, was {tree}."),
        (4, [chosen, update], "The number of clusters before the update: 3, as ",
         f"The number of clusters, 4, was made by an update; that before, 3, was {tree}."),
        (3, [replace(chosen, end="known"), hints], "The number of clusters: 3, as ",
         "The number of clusters, 3, was what is known beforehand needs."),
    ):  # fmt: skip
        run = read_run(write_run(tmp_path / f"run{len(paper)}", clusters=clusters, decisions=records(*decisions)))
        assert how_many(run).startswith(start)
        assert paper in methods_text(run)
    assert how_many(run).endswith("; what is known of the samples needs as many, and the data say fewer.")


def test_of_one_cluster_nobody_is_unsure(tmp_path):
    asked = read_run(write_run(tmp_path / "run", clusters=1))
    assert how_sure(asked, str) == []
    assert headline(asked) == "60 samples in 1 cluster"
    number = records(ClusterNumber(1, {}, "one", [], "", []))
    found = read_run(write_run(tmp_path / "run", clusters=1, decisions=number))
    assert headline(found) == "60 samples without clusters"
    assert how_many(found).startswith("The number of clusters: 1, no clusters were found, as samples fall apart")
