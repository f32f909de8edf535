"""Data sets with clusters of unequal size in the bench of decisions, and a plan that is run in parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.experiments import catalogue, launch, merge, plans, unequal
from benchmarks.experiments.catalogue import CATALOGUE, DataSet
from benchmarks.experiments.records import Record, read_records, write_records
from conftest import write_tiny_plan
from viewfuse import SettingError


def test_sets_that_are_made_unequal_have_these_sizes():
    found = {key: np.bincount(draw(0)[1] + 1).tolist() for key, draw in unequal.DRAWN.items()}
    assert found == {
        "synthetic_95_5": [0, 950, 50],
        "synthetic_90_8_2": [0, 270, 24, 6],
        "synthetic_90_8_2_of_500": [0, 450, 40, 10],
        "synthetic_halves": [0, 400, 200, 100, 50, 25, 12],
        "synthetic_geometric": [0, 400, 260, 169, 109, 71, 46, 30, 19, 12, 8],
        "synthetic_outliers": [6, 100, 100, 94],
        "synthetic_cigars": [0, 100, 100, 100],
    }


def test_where_clusters_and_outliers_lie():
    """Means of clusters are those of the docstrings, and cigars are long in one direction only."""
    for views, labels in (unequal.blobs((950, 50), 3, 8.0), unequal.blobs((400, 400), 4, 8.0)):
        apart = [np.linalg.norm(view[labels == 0].mean(axis=0) - view[labels == 1].mean(axis=0)) for view in views]
        assert apart == pytest.approx([8, 8], abs=0.7)
    views, labels = unequal.outliers(3)
    assert all(np.linalg.norm(view[labels == -1], axis=1).min() > 30 for view in views)
    assert all(np.linalg.norm(view[labels != -1], axis=1).max() < 15 for view in views)
    views, labels = unequal.cigars(3)
    for view in views:
        own = np.linalg.eigvalsh(np.cov(view[labels == 1].T)) ** 0.5
        assert own[-1] > 15
        assert own[-2] < 1.5
    assert (
        abs(np.corrcoef(*(view[labels == 1] @ np.linalg.eigh(np.cov(view.T))[1][:, -1] for view in views))[0, 1]) < 0.3
    )


def test_every_draw_of_a_set_is_another_and_always_the_same():
    for draw in unequal.DRAWN.values():
        first, again, other = (draw(seed)[0][0] for seed in (1, 1, 2))
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)


def test_samples_are_kept_class_by_class():
    """As `kept_rows` says, step by step: labels neither from 0 nor in order, sizes from one to all of a class."""
    labels = np.random.default_rng(0).permutation(np.repeat([7, 3, 5], (30, 8, 12)))
    rng, kept = np.random.default_rng((0, 80)), []
    for own, size in ((3, 8), (5, 1), (7, 20)):
        kept += rng.choice([i for i, label in enumerate(labels) if label == own], size, replace=False).tolist()
    rows = unequal.kept_rows(labels, (8, 1, 20))
    assert rows.tolist() == sorted(kept)
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [8, 1, 20]
    with pytest.raises(ValueError, match="shorter"):
        unequal.kept_rows(labels, (8, 1))


@pytest.mark.parametrize(
    "key",
    [
        "handwritten_unequal",
        *(pytest.param(f"{name}_cut", marks=pytest.mark.slow) for name in ("citeseq", "prokaryotic")),
        "bbcsport_cut",
    ],
)
def test_parts_of_real_sets_have_the_sizes_of_the_catalogue(shared_data, key):
    entry = CATALOGUE[key]
    if entry.part_of != "handwritten" and not (shared_data / f"{entry.part_of}.npz").exists():
        pytest.skip("the data are not here")
    part, whole = (catalogue.load(shared_data, CATALOGUE[name]) for name in (key, entry.part_of))
    sizes, before = (np.bincount(one.labels) for one in (part, whole))
    assert tuple(sizes) == entry.sizes
    assert not list(catalogue.differences(entry, len(part.labels), [v.shape[1] for v in part.views], entry.classes))
    assert (entry.missing_number, entry.is_measured) == (CATALOGUE[entry.part_of].missing_number, False)
    if key.endswith("_cut"):
        (cut,) = np.flatnonzero(sizes < before)
        assert cut == np.argsort(before)[-2]
        assert sizes[cut] == round((sizes.sum() - sizes[cut]) * 0.05 / 0.95)
    else:
        assert sizes.tolist() == [round(10 * (1 + 19 * digit / 9)) for digit in range(10)]
    places = [[view.tobytes() for view in rows] for rows in zip(*whole.views, strict=True)]
    assert all([view.tobytes() for view in rows] in places for rows in list(zip(*part.views, strict=True))[::97])


# --- in parts


TINY = DataSet("tiny", "Tiny", 40, (5, 8, 3), 2, 1, in_paper=False)
PARTS = """
title = "Parts"
data = ["tiny"]
missing_rates = [0.25, 0.5]
seeds = 2
settings = ["default"]
[[conditions]]
name = "auto"
scaling = "standard"
settings = { embedding_dim = 8, hidden_dim = 8, batch_size = 20, pretrain_epochs = 1, joint_epochs = 0 }
[[conditions]]
name = "minmax, no joint stage"
scaling = "minmax"
settings = { embedding_dim = 8, hidden_dim = 8, batch_size = 20, pretrain_epochs = 1, joint_epochs = 0 }
[[conditions]]
name = "k-means"
method = "kmeans-knn"
"""


@pytest.mark.slow
def test_parts_that_are_run_apart_are_the_whole(tmp_path, monkeypatch):
    monkeypatch.setitem(CATALOGUE, "tiny", TINY)
    write_tiny_plan(tmp_path, PARTS)
    asked = [str(tmp_path / "tiny.toml"), "--data-dir", str(tmp_path), "--device", "cpu"]
    jobs = [(rate, mask) for mask in ("1", "0") for rate in ("0.25", "0.5")]
    for rate, mask in jobs:
        part = ["--data", "tiny", "--rate", rate, "--mask", mask, "--out", str(tmp_path / f"{rate}-{mask}")]
        assert launch.main([*asked, *part]) == 0
    found = sorted(map(str, tmp_path.glob("*/tiny/results.csv")))
    assert len(found) == len(jobs)
    assert merge.main([*found, "--out", str(tmp_path / "merged")]) == 0
    assert launch.main([*asked, "--out", str(tmp_path / "whole")]) == 0
    both = [read_records(path) for path in (tmp_path / "merged" / "results.csv", tmp_path / "whole" / "tiny")]
    first, second = ([replace(one, seconds=0.0) for one in own] for own in both)
    assert len(first) == 2 * 2 * 3
    assert sorted(first, key=repr) == sorted(second, key=repr)
    assert all(one.macro is not None for one in first)
    names = {path.stem for path in (tmp_path / "merged" / "tables").iterdir()}
    assert names == {"tiny", "tiny-macro", "tiny-ari", "tiny-summary", "tiny-by-rate"}


def test_a_part_of_a_plan_is_what_was_asked_for():
    plan, entry = plans.read_plan("decisions"), CATALOGUE["synthetic_cigars"]
    runs = plans.expand(plan, entry, conditions=["auto", "NEMO"], rates=[0.4], masks=[5, 9])
    assert [(one.condition, one.missing_rate, one.seed) for one in runs] == [
        ("auto", 0.4, 5), ("auto", 0.4, 9), ("NEMO", 0.4, 5), ("NEMO", 0.4, 9),
    ]  # fmt: skip
    real = plans.expand(plan, CATALOGUE["miniacc_partial"], conditions=["auto"], rates=[0.4], masks=[5])
    assert [one.missing_rate for one in real] == [0.53]  # its gaps are its own


@pytest.mark.parametrize(
    ("asked", "message"),
    [({"conditions": ["automatic"]}, "condition 'automatic'"), ({"seeds": 2, "masks": [1]}, "masks")],
)
def test_a_part_that_cannot_be_run_is_refused(tmp_path, asked, message):
    with pytest.raises(SettingError, match=message):
        launch.bench("decisions", tmp_path, tmp_path, device="cpu", **asked)


def test_runs_of_the_last_file_count_and_stand_in_the_order_of_the_plan(tmp_path):
    order = [
        Record("decisions", key, rate, seed, "urrl", "default", condition, 90.0, 80.0, 70.0, 1.5, "{}")
        for key in ("handwritten", "synthetic_95_5")
        for condition in ("auto", "standard, joint stage")
        for rate in (0.25, 0.5)
        for seed in (0, 10)
    ]
    write_records(tmp_path / "a.csv", order[::-3])
    write_records(tmp_path / "b.csv", [replace(one, acc=50.0, macro=40.0) for one in order[::-1]])
    write_records(tmp_path / "c.csv", [order[3]])
    found = merge.merged([tmp_path / f"{name}.csv" for name in "abc"])
    assert found == [one if i == 3 else replace(one, acc=50.0, macro=40.0) for i, one in enumerate(order)]
