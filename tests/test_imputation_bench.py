"""Hidden views, filled and compared with what they were: the measures, the ways to fill, the command."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.command import main
from benchmarks.experiments import imputation
from benchmarks.experiments.catalogue import CATALOGUE, DataSet, Loaded
from benchmarks.experiments.imputation import Filling, bench_imputation, compared, filled_by_donors, table_of
from conftest import make_blobs
from flat import flat
from viewfuse import URRL, DataError, SettingError
from viewfuse.baselines import filled_by_mean, filled_by_nearest, knn_filled
from viewfuse.data.views import Views

SMALL = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 20, "pretrain_epochs": 1, "joint_epochs": 1}
TINY = DataSet("handwritten", "Tiny", 40, (5, 8, 3), 2, 1)
WAYS = ["viewfuse", "donors of the model", "five nearest", "thirty nearest", "column mean"]


@pytest.fixture
def tiny(monkeypatch):
    """One data set of forty samples stands for Handwritten; the others are not there."""
    views, labels, _ = make_blobs(40, 2, missing=0.0)

    def load(folder, entry):
        if entry.key != TINY.key:
            raise DataError(f"no {entry.key}")
        return Loaded(TINY, views, labels)

    monkeypatch.setattr("benchmarks.experiments.catalogue.load", load)
    monkeypatch.setattr(imputation, "URRL", lambda k, **given: URRL(k, **given, **flat(**SMALL)))
    return views


# --- the measures


def test_what_is_known_exactly_is_filled_without_error():
    truth = np.random.default_rng(0).normal(size=(30, 6))
    gone = np.arange(30) < 12
    assert compared(truth, truth, gone) == pytest.approx({"columns": 1, "samples": 1, "error": 0})
    assert compared(-truth, truth, gone)["columns"] == pytest.approx(-1)


def test_the_measures_are_those_of_numpy_and_of_hidden_rows_only():
    rng = np.random.default_rng(0)
    truth, filled, gone = rng.normal(size=(30, 6)), rng.normal(size=(30, 6)), np.arange(30) % 3 == 0
    a, b = filled[gone], truth[gone]
    found = compared(np.where(gone[:, None], filled, 1e9), truth, gone)
    assert found["columns"] == pytest.approx(np.mean([np.corrcoef(a[:, c], b[:, c])[0, 1] for c in range(6)]))
    assert found["samples"] == pytest.approx(np.mean([np.corrcoef(a[r], b[r])[0, 1] for r in range(10)]))
    assert found["error"] == pytest.approx(np.sqrt((((a - b) / truth.std(axis=0)) ** 2).mean()))


def test_constant_columns_count_only_where_the_truth_varies():
    rng = np.random.default_rng(0)
    truth, gone = rng.normal(size=(20, 3)), np.ones(20, dtype=bool)
    filled = truth.copy()
    filled[:, 0] = 7.0  # says nothing of a column that varies
    assert compared(filled, truth, gone)["columns"] == pytest.approx(2 / 3)
    truth[:, 0] = 7.0
    assert compared(filled, truth, gone)["columns"] == pytest.approx(1)


# --- the ways to fill


def test_nearest_samples_fill_in_the_units_of_the_data():
    views, _, mask = make_blobs(40, 2)
    filled = filled_by_nearest(views)
    scaled = knn_filled(views)
    start = 0
    for v, view in enumerate(views):
        assert np.array_equal(filled[v][mask[:, v]], view[mask[:, v]])
        low, high = np.nanmin(view, axis=0), np.nanmax(view, axis=0)
        part = scaled[:, start : start + view.shape[1]]
        assert filled[v] == pytest.approx(part * (high - low) + low, abs=1e-4)
        start += view.shape[1]


def test_donors_of_wide_views_give_values_that_were_not_reduced():
    views, _, mask = make_blobs(40, 2, widths=(300, 4))
    model = URRL(2, **flat(**SMALL), random_state=0, device="cpu").fit(views)
    filled, explained = filled_by_donors(model, Views(views)), model.explain(views)
    row = int(np.flatnonzero(~mask[:, 0])[0])
    assert len(explained.donors[row, 0])
    assert filled[0][row] == pytest.approx(views[0][list(explained.donors[row, 0])].mean(axis=0), abs=1e-5)
    assert np.array_equal(filled[0][mask[:, 0]], views[0][mask[:, 0]])


def test_a_view_without_donors_is_filled_with_the_mean():
    views = make_blobs(20, 2, widths=(3, 4), missing=0.0)[0]
    views[0][::2], views[1][1::2] = np.nan, np.nan
    with pytest.warns(UserWarning, match="no sample has this view and another one"):
        model = URRL(2, **flat(**SMALL), random_state=0, device="cpu").fit(views)
    assert np.array_equal(filled_by_donors(model, Views(views))[0], filled_by_mean(views)[0])


# --- the whole


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_way_fills_every_view_for_every_seed(tiny, tmp_path):
    said = []
    found = bench_imputation(tmp_path, device="cpu", seeds=2, models=tmp_path / "models", log=said.append)
    assert [(one.seed, one.filled_by, one.view) for one in found] == [
        (seed, way, v) for seed in (0, 1) for way in WAYS for v in range(3)
    ]
    assert len([line for line in said if line.startswith("left out")]) == len(imputation.DATA) - 1
    hidden = [one.hidden for one in found if one.seed == 0 and one.filled_by == "viewfuse"]
    assert sum(hidden) == 20  # half of forty samples lack one view
    mean = [one for one in found if one.filled_by == "column mean"]
    assert all(one.columns == 0 for one in mean)
    nearest = [one for one in found if one.filled_by == "five nearest"]
    assert np.mean([one.error for one in nearest]) < np.mean([one.error for one in mean])
    kept = bench_imputation(tmp_path, device="cpu", seeds=2, models=tmp_path / "models", log=said.append)
    assert kept == found


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_command_writes_table_and_csv(tiny, tmp_path):
    out = tmp_path / "out"
    asked = ["impute", "--data-dir", str(tmp_path), "--out", str(out), "--device", "cpu"]
    done = CliRunner().invoke(main, [*asked, "--seeds", "1", "--data", "handwritten"])
    assert done.exit_code == 0, done.output
    assert "five nearest" in done.output
    assert [path.name for path in sorted(out.iterdir())] == ["impute.csv", "impute.md"]
    with (out / "impute.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 15
    assert set(rows[0]) == {"dataset", "seed", "view", "filled_by", "hidden", "columns", "samples", "error"}
    assert CliRunner().invoke(main, asked).exit_code == 2  # there already, and no --force


def test_unknown_data_sets_and_empty_folders_are_refused(tmp_path):
    with pytest.raises(SettingError, match="data set 'nothing' is unknown"):
        bench_imputation(tmp_path, data=["nothing"])
    with pytest.raises(DataError, match="holds none of bdgp"):
        bench_imputation(tmp_path, data=["bdgp"], log=lambda _: None)


def test_the_table_has_means_and_deviations():
    runs = [Filling("bdgp", seed, 1, "viewfuse", 9, 0.2 + 0.1 * seed, 0.5, 1.0) for seed in (0, 1)]
    table = table_of([*runs, Filling("bdgp", 0, 1, "column mean", 9, 0.0, 0.25, 1.0)])
    assert table.rows[0] == ("BDGP", "1", "79", "viewfuse", "0.250 ± 0.071", "0.500 ± 0.000", "1.000 ± 0.000", "2")
    assert table.rows[1][3:] == ("column mean", "0.000", "0.250", "1.000", "1")
    assert all(key in CATALOGUE for key in imputation.DATA)
