"""Sentences, tests and drawings of the page that were once wrong for some runs."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from run_folders import SPLITS, a_split, trust_of, write_run
from viewfuse.cli import main
from viewfuse.data.views import Views
from viewfuse.io.writers import Judged, write_labels
from viewfuse.report.association import association_section, associations, log_rank
from viewfuse.report.charts import line_chart
from viewfuse.report.comparison import Column, columns_for, crossed_with, read_known
from viewfuse.report.page import write_report
from viewfuse.report.run_folder import read_run
from viewfuse.report.sections import cluster_section, decision_section, k_section, loss_section
from viewfuse.report.tables import methods_text, tables_of
from viewfuse.selection.decision_texts import records, words
from viewfuse.selection.decisions import (
    BatchEffects,
    CellFilling,
    ClusterNumber,
    JointStageLength,
    KeptNumbers,
    KnownClasses,
    KnownPairs,
)

HINTS = KnownClasses(2, {"a": ["s1"], "b": ["s2"]}, 2, 2, {})
PAIRS = KnownPairs(1, {"must_link": [["s1", "s2"]], "cannot_link": []}, 1, {})


@pytest.mark.parametrize("known", [HINTS, PAIRS])
def test_a_run_with_hints_does_not_say_that_labels_were_never_used(tmp_path, known):
    decisions = {"trust": trust_of(), **records(known)}
    run = read_run(write_run(tmp_path / "run", decisions=decisions))
    write_report([run.folder], tmp_path / "page.html")
    page, text = (tmp_path / "page.html").read_text(), methods_text(run)
    for said in (page, text):
        assert "No label was used" not in said
        assert "Labels are never used" not in said
        assert "without labels" not in said
    assert "No other label was used in training." in text
    given = "The classes of 2 samples were known beforehand; the clusters keep 2 of 2 with their class. "
    if known is PAIRS:
        given = "1 pair of samples was known to be together or apart; the clusters keep 1 of 1. "
    assert f" {given}No other label" in text


def test_the_paragraph_says_that_batch_effects_were_taken_out(tmp_path):
    effects = BatchEffects({"p1": 30, "p2": 30}, {"before": 0.5, "after": 0.01}, {})
    run = read_run(write_run(tmp_path / "run", decisions={"trust": trust_of(), **records(effects)}))
    said = methods_text(run)
    assert ". The effects of 2 batches were taken out; the adjusted mutual information" in said
    assert "the same groups) is 0.01, before it was 0.50. " in said
    assert "No label was used in training." in said


def test_a_joint_stage_that_was_undone_is_called_so_in_the_chart(tmp_path):
    """Its epochs were shaded as if they counted."""
    stage = JointStageLength(0, {}, lasted=2, planned=9, ended="")
    for kept, note in ((0, "undone after 2 epochs"), (1, "after 1 of 2 epochs is kept"), (2, "")):
        decisions = records(replace(stage, chosen=kept))
        body = loss_section(read_run(write_run(tmp_path / str(kept), decisions=decisions))).body
        assert ("reconstruction; shaded: undone</figcaption>" in body) == (kept == 0)
        assert ("This joint stage: " in body) == (kept < 2)
        assert note in body


def test_one_cluster_is_not_said_to_be_found_again(tmp_path):
    run = read_run(write_run(tmp_path / "run", clusters=1, decisions={"trust": trust_of(clusters=1)}))
    body = cluster_section(run).body
    assert "ound again" not in body
    assert body.count("<th ") == body.split("</tr>")[1].count("<td") == 5
    (one,) = tables_of(run)["clusters.csv"].rows
    assert sum(cell != cell for cell in one) == 3  # found again, and its interval


def test_times_and_events_of_survival_are_no_classes(tmp_path):
    """The event was compared with the clusters like a class: 52 % in the matching cluster."""
    folder, out = write_run(tmp_path / "run"), tmp_path / "page.html"
    rows = "".join(f"s{i},{i % 7},{i % 2},{'ab'[i % 2]}\n" for i in range(1, 61))
    (tmp_path / "known.csv").write_text(f"id,days,dead,sex\n{rows}")
    data = write_report([folder], out, tmp_path / "known.csv", survival=("days", "dead"))
    assert sorted(path.name for path in data.glob("known_*.csv")) == ["known_sex.csv"]
    assert (data / "scores.csv").read_text().count("\n") == 2
    assert "Not compared, but a colour on the map: days, dead." in out.read_text()


def test_many_facts_of_columns_are_one_line(tmp_path):
    facts = {"cells": 347, "columns": {f"cg{i}": 6 for i in range(168)}}
    decisions = records(CellFilling("neighbors", {"rna": {**facts, "share": 0.02, "by_median": 0}}))
    body = decision_section(read_run(write_run(tmp_path / "run", decisions=decisions)), str).body
    assert "rna columns: 168, such as cg0 (6), cg1 (6), cg2 (6)\n" in body
    assert "cg3" not in body.split("<pre>")[1]


def test_the_table_of_splits_is_in_words(tmp_path):
    weak, flat = a_split(0, 0, [50, 40], 0.1, stands=False), a_split(0, 1, [45, 15], 2, stands=False, valley=0.3)
    splits = [a_split(-1, 0, [90, 60], 2.5, p_value=5.92e-35), weak, flat, {**SPLITS[-1], "parent": 1}]
    decisions = records(ClusterNumber(2, {}, "clusters", (), "", splits))
    body = k_section(read_run(write_run(tmp_path / "run", decisions=decisions))).body
    assert "nan" not in body.split("<tbody>")[1]
    assert 'data-value="-1">root<' in body
    assert body.count(">root<") == 1
    assert 'data-value="5.92e-35">&lt; 0.001<' in body
    assert "Level: the p-value below which" in body
    whys = re.findall(r">([^<]*)</td></tr>", body)
    assert [why.split()[0] if why else "" for why in whys] == ["", "too", "samples", "data"]


def test_several_views_that_were_not_asked_are_listed():
    number = ClusterNumber(1, {}, "one", [], "", [], unasked=["batch", "known", "truth"])
    assert "; batch, known and truth were not asked, as" in words(number)
    assert "; batch was not asked, as" in words(replace(number, unasked=["batch"]))


def test_the_paragraph_says_who_chose_the_number_of_clusters(tmp_path):
    few = ClusterNumber(1, {}, "few", (), "", [])
    numbers = KeptNumbers([0, 2], {"samples": 60, "share": 1.0, "by_ids": True}, [], [1])
    for i, (own, said) in enumerate([
        ([few], "clusters, 3, was chosen without labels."),
        ([ClusterNumber(3, {}, "clusters", (), "", SPLITS)], "clusters, 3, was chosen without labels by a tested tree"),
        ([], "clusters, 3, was set beforehand."),
        ([numbers], "clusters, 2, was set beforehand."),
    ]):  # fmt: skip
        run = read_run(write_run(tmp_path / str(i), decisions={"trust": trust_of(), **records(*own)}))
        assert said in methods_text(run)


def test_a_group_that_left_before_the_first_event_does_not_make_survival_more_alike():
    rng = np.random.default_rng(0)
    times, seen, group = rng.exponential(5, 40) + 1, rng.random(40) < 0.8, np.repeat([0, 1], 20)
    times[20:] *= 2
    early = np.full(10, 0.5), np.zeros(10, dtype=bool), np.full(10, 2)
    more = [np.concatenate(pair) for pair in zip((times, seen, group), early, strict=True)]
    assert log_rank(*more) == pytest.approx(log_rank(times, seen, group))
    assert np.isnan(log_rank(np.array([5.0, 1, 1]), np.array([True, False, False]), np.array([0, 1, 1]))).all()


def test_names_of_samples_are_no_classes_to_test(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    names = Column("name", tuple(map(str, range(60))), np.arange(60.0))
    group = Column("group", ("a", "b"), (run.labels == 0).astype(float))
    found = associations(run, [names, group])
    assert [one.column for one in found] == ["group"]
    assert found[0].p == found[0].corrected


def test_survival_that_cannot_be_tested_is_said(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    n = len(run.ids)
    known = [Column("days", (), np.linspace(1, 9, n)), Column("dead", ("no", "yes"), np.zeros(n))]
    section = association_section(run, known, ("days", "dead"), associations(run, known, ("days", "dead")))
    assert "Survival cannot be tested: no event was seen in two clusters or more." in section.body
    assert section.body.count("Kaplan-Meier") == 2 * run.n_clusters


def test_curves_of_survival_have_the_same_axes(tmp_path):
    run = read_run(write_run(tmp_path / "run"))
    n = len(run.ids)
    days = np.where(run.labels == 0, 10.0, 5000.0) + np.arange(n)
    known = [Column("days", (), days), Column("dead", ("no", "yes"), (np.arange(n) % 2).astype(float))]
    drawn = association_section(run, known, ("days", "dead"), associations(run, known, ("days", "dead"))).body.split(
        "<figure"
    )[1:]
    assert len(drawn) == run.n_clusters
    ends = [re.findall(r"<text[^>]*>([\d.e+]+)</text>", one) for one in drawn]
    assert ends == [["0", "1", "0", f"{days.max():g}"]] * run.n_clusters


def spans(drawn: str) -> list[tuple[float, float, float]]:
    """From where to where each text of a drawing goes, and how high it stands; letters are 6 wide at most."""
    found = []
    for x, y, anchor, text in re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)">([^<]*)<', drawn):
        width = 6 * len(text)
        start = float(x) - {"start": 0, "middle": width / 2, "end": width}[anchor]
        found.append((start, start + width, float(y)))
    return found


@pytest.mark.parametrize(("points", "along"), [
    ([(0, 1.0), (3650.25, 0.5)], "overall_survival_time_since_first_diagnosis_in_days"),
    ([(0, 1.23456e-5), (100000, 0.0)], "epoch"), ([(1, -123456.0), (12345678, -2345678.0)], "epoch"),
])  # fmt: skip
def test_texts_of_charts_neither_overlap_nor_leave_the_chart(points, along):
    found = spans(line_chart(points, "title", along))
    assert len(found) == 5
    for i, (start, end, y) in enumerate(found):
        assert 0 <= start < end <= 320
        for other_start, other_end, other_y in found[:i]:
            assert abs(y - other_y) >= 10 or end <= other_start or other_end <= start


def test_classes_that_only_outliers_have_are_compared_with_nothing(tmp_path):
    folder = write_run(tmp_path / "run")
    run = read_run(folder)
    labels = np.array([-1, -1, *run.labels[2:]])
    given = Views({name: np.where(run.present[:, [v]], 1.0, np.nan) for v, name in enumerate(run.views)}, ids=run.ids)
    sure = np.eye(3, dtype=np.float32)[run.labels]
    write_labels(folder / "labels.csv", given, Judged(labels, sure, labels > 9, np.zeros(60), labels < 0))
    (tmp_path / "known.csv").write_text("id,class\ns1,a\ns2,b\n" + "".join(f"s{i},\n" for i in range(3, 61)))
    (column,) = columns_for(read_run(folder), read_known(tmp_path / "known.csv"))
    assert crossed_with(read_run(folder), column) is None
    write_report([folder], tmp_path / "page.html", tmp_path / "known.csv")
    page = (tmp_path / "page.html").read_text()
    assert "Not compared, but a colour on the map: class." in page
    assert "Map of 58 samples in 3 clusters, and 2 outliers; the table" in page
    other = write_run(tmp_path / "other", seed=1)
    write_report([folder, other], tmp_path / "pair.html")
    pair = (tmp_path / "pair.html").read_text()
    assert " only in “" not in pair
    assert "2 outliers of “run”" in pair


@pytest.mark.parametrize("option", [["--batch", "plate"], ["--survival", "days", "dead"]])
def test_what_a_page_of_two_runs_cannot_show_is_refused(tmp_path, option):
    runs = [str(write_run(tmp_path / name, seed=seed)) for seed, name in enumerate("ab")]
    said = CliRunner().invoke(main, ["report", *runs, "--out", str(tmp_path / "page.html"), *option])
    assert said.exit_code == 2
    assert "a report is about one run" in said.output
