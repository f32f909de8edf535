"""Empty cells of rows that are there: filled from observed cells only, told, and refused where they are too many."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.impute import KNNImputer

from conftest import make_blobs
from viewfuse import URRL, Config, baselines, metrics, read_views
from viewfuse.cli import main
from viewfuse.data import filling
from viewfuse.data.checks import suspicious_columns
from viewfuse.data.filling import NearestRows, count_empty, fit_filler
from viewfuse.data.views import Views
from viewfuse.datasets import load_handwritten
from viewfuse.errors import DataError, EmptyCellsWarning, SettingError
from viewfuse.missing import apply_mask, paper_mask

NAN = np.nan
TINY = {"config": Config(embedding_dim=16, hidden_dim=16, pretrain_epochs=4, joint_epochs=0), "scaling": "standard"}


def with_empty_cells(views, share=0.05, seed=0):
    """Copies with so many empty cells, and no new wholly empty row."""
    rng, found = np.random.default_rng(seed), []
    for view in views:
        empty = rng.random(view.shape) < share
        empty[:, 0] = False
        found.append(np.where(empty, NAN, view).astype(np.float32))
    return found


def filled(array, how="neighbors"):
    views = Views([array])
    return fit_filler(views, how).apply(views)[0].arrays[0]


@given(seed=st.integers(0, 10_000), n=st.integers(8, 40), width=st.integers(3, 9), share=st.sampled_from([0.05, 0.25]))
def test_cells_are_filled_as_by_scikit_learn_on_columns_of_one_scale(seed, n, width, share):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n, width)).astype(np.float32)
    table = np.where(rng.random(table.shape) < share, NAN, table)
    table[:, 0] = rng.normal(size=n)
    deviation = np.nanstd(table, axis=0)
    table = table[:, deviation > 0] / deviation[deviation > 0]
    views = Views([table])
    empty = np.isnan(table)
    assume(max(empty.mean(axis=0).max(), empty.mean(axis=1).max()) <= 0.8)
    assume(empty.mean() <= 0.3)
    wanted = KNNImputer(n_neighbors=5).fit_transform(table.astype(np.float32).astype(np.float64))
    assert np.allclose(fit_filler(views).apply(views)[0].arrays[0], wanted, atol=1e-5)


def test_donors_are_found_however_deep_they_stand(monkeypatch):
    """Half of the rows lack the same columns, so that the nearest ones cannot help each other."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(60, 6)).astype(np.float32)
    table[:30] += 20
    table[:29, 4:] = NAN
    whole = filled(table)
    assert not np.isnan(whole).any()
    monkeypatch.setattr(filling, "_CANDIDATES", 60)
    assert np.array_equal(filled(table), whole)
    monkeypatch.setattr(filling, "_CELLS_AT_A_TIME", 1)  # a row, and a cell, at a time
    assert np.array_equal(filled(table), whole)


def test_columns_count_alike_whatever_their_unit_and_whole_numbers_stay_whole():
    rng = np.random.default_rng(1)
    group = np.repeat([0.0, 1.0], 20)
    noise = rng.normal(size=40) * 1e6  # a wide column that tells nothing
    table = np.column_stack([group + rng.normal(size=40) * 0.01, group * 3 + rng.integers(0, 2, 40), noise])
    table[0, 1] = table[39, 1] = NAN
    found = filled(table)
    assert found[0, 1] in (0, 1)
    assert found[39, 1] in (3, 4)
    assert np.array_equal(np.delete(found, [0, 39], axis=0), np.delete(table, [0, 39], axis=0).astype(np.float32))


def test_cells_of_one_donor_have_its_value():
    table = np.random.default_rng(2).normal(size=(5, 30))
    table[1:, 4] = NAN
    table[0, 4] = 7.25
    assert filled(table)[:, 4].tolist() == [7.25] * 5


def test_medians_where_nobody_can_help():
    """The only row that could lend its values has no column in common."""
    donors = NearestRows(np.array([[5, 6, NAN, 8]], np.float32))
    filler = filling.Filler("neighbors", (np.array([1, 2, 3, 4], np.float32),), (donors,))
    found, (cells,) = filler.apply(Views([[[NAN, NAN, 9.0, NAN]]]))
    assert found.arrays[0].tolist() == [[1, 2, 9, 4]]
    assert cells.by_median == 3


@given(seed=st.integers(0, 10_000), spoilt=st.sampled_from([0.0, 1e6, -3.0, np.inf]))
def test_hidden_rows_never_leak_into_filled_cells(seed, spoilt):
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(20, 4)).astype(np.float32)
    table[rng.integers(20, size=4), rng.integers(1, 4, size=4)] = NAN
    other, mask = np.ones((20, 1), np.float32), np.ones((20, 2), bool)
    mask[rng.integers(20, size=5), 0] = False
    spoilt_table = np.where(mask[:, :1], table, np.float32(spoilt))
    for how in ("neighbors", "median"):
        arrays = []
        for one in (table, spoilt_table):
            views = Views([one, other], mask=mask)
            complete, _ = fit_filler(views, how).apply(views)
            assert np.array_equal(complete.mask, mask)  # a missing view stays missing
            arrays.append(complete.arrays[0])
        assert np.array_equal(*arrays)
        seen = table[mask[:, 0]]
        low, high = np.nanmin(seen, axis=0), np.nanmax(seen, axis=0)
        assert ((arrays[0] >= np.minimum(low, 0) - 1e-6) & (arrays[0] <= np.maximum(high, 0) + 1e-6)).all()


def test_cells_never_come_from_rows_that_lack_the_view():
    table = np.full((12, 3), 5.0, np.float32) + np.arange(12)[:, None]
    table[4:] = 0
    table[0, 1] = NAN
    mask = np.column_stack([np.arange(12) < 4, np.ones(12, bool)])
    views = Views([table, np.ones((12, 1))], mask=mask)
    assert fit_filler(views).apply(views)[0].arrays[0][0, 1] == 7  # the mean of 6, 7 and 8


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (np.where(np.arange(400).reshape(40, 10) % 3 == 0, NAN, 1.0),
         r"34%\), more than 30%.*worst columns: 'g\d' \(14 of 40 rows\).*worst rows: 'p\d+' \(4 of 10 cells\)"),
        (np.where((np.arange(10) == 4) & (np.arange(40)[:, None] > 3), NAN, 1.0), "column more than 80%.*'g4' .36 of"),
        (np.where((np.arange(10) > 0) & (np.arange(40)[:, None] == 7), NAN, 1.0), "row 7 .id 'p7'.: 9 of its 10 cells"),
    ],
)  # fmt: skip
def test_too_many_empty_cells_are_refused_with_the_worst_places(table, words):
    frame = pd.DataFrame(table, index=[f"p{i}" for i in range(40)], columns=[f"g{i}" for i in range(10)])
    with pytest.raises(DataError, match=f"view 'rna'.*{words}"):
        fit_filler(Views({"rna": frame}))


def test_fill_says_how_or_refuses():
    views = Views({"rna": [[1.0, NAN], [1.0, 2.0], [3.0, 4.0]]}, ids=list("abc"))
    with pytest.raises(DataError, match=r"view 'rna', row 0 \(id 'a'\), column 1: the cell is empty"):
        URRL(2, fill="error").fit(views)
    with pytest.raises(SettingError, match="fill must be one of neighbors, median, error; got 'mean'"):
        URRL(2, fill="mean").fit(views)
    with pytest.raises(SettingError, match="fill must be"):
        fit_filler(views, None)


def test_suspicions_look_through_empty_cells():
    table = np.ones((30, 3), np.float32)
    table[:, 1] = np.linspace(0, 1, 30)
    table[3, 1] = -999
    table[5] = [NAN, NAN, 1]
    found = suspicious_columns(Views([table]), 0)
    assert sorted(column for columns in found.values() for column in columns) == ["0", "1", "2"]


def test_empty_cells_of_files_are_read_as_such(tmp_path):
    (tmp_path / "rna.csv").write_text("id,x,y\na,1,\nb,NA,2\nc,,\nd,1,2\n")
    (tmp_path / "protein.csv").write_text("id,z\na,1\nb,2\nc,3\n")
    views = read_views([tmp_path / "rna.csv", tmp_path / "protein.csv"])
    assert views.mask.tolist() == [[True, True], [True, True], [False, True], [True, False]]
    assert np.array_equal(views.arrays[0], [[1, NAN], [NAN, 2], [0, 0], [1, 2]], equal_nan=True)


@pytest.fixture(scope="module")
def fitted():
    """Groups that are clear, with empty cells and missing views, and a model of them."""
    views, labels, mask = make_blobs(60, 2, widths=(6, 5), missing=0.2)
    data = dict(zip(("rna", "protein"), with_empty_cells(views, 0.08), strict=True))
    with pytest.warns(EmptyCellsWarning, match=r"empty cells were filled: rna: \d+ cells .*; protein: "):
        model = URRL(2, **TINY, random_state=0).fit(data)
    return model, data, labels, mask


def test_a_row_with_empty_cells_is_a_present_view(fitted):
    model, data, labels, mask = fitted
    assert np.array_equal(Views(data).mask, mask)
    assert metrics.clustering_accuracy(labels, model.labels_) >= 0.95
    told = model.decisions_["empty_cells"]
    assert told["chosen"] == "neighbors"
    there = np.isnan(data["rna"]) & mask[:, :1]
    assert told["evidence"]["rna"]["cells"] == there.sum()
    assert told["evidence"]["rna"]["columns"] == {str(c): n for c, n in enumerate(there.sum(axis=0)) if n}
    assert told["why"].startswith("empty cells: filled from the nearest rows; rna: ")


def test_training_samples_come_back_as_they_were_placed_also_from_disk(fitted, tmp_path):
    model, data, _, _ = fitted
    with pytest.warns(EmptyCellsWarning):
        assert np.array_equal(model.transform(data), model.embedding_)
    model.save(tmp_path)
    loaded = URRL.load(tmp_path)
    assert loaded.fill == "neighbors"
    complete, cells = loaded.complete(data)
    assert [one.total for one in cells] == [one.total for one in count_empty(Views(data))]
    assert np.array_equal(loaded.predict(complete), model.labels_)
    one_by_one = [loaded.complete({name: view[row : row + 1] for name, view in data.items()})[0] for row in range(10)]
    assert np.array_equal(np.concatenate([views.arrays[0] for views in one_by_one]), complete.arrays[0][:10])


def test_impute_fills_cells_and_keeps_what_was_given(fitted):
    model, data, _, mask = fitted
    with pytest.warns(EmptyCellsWarning):
        imputed = model.impute(data)
    for v, (name, view) in enumerate(data.items()):
        seen = ~np.isnan(view)
        assert np.array_equal(imputed[name][seen], view[seen])
        assert np.isfinite(imputed[name]).all()
        assert np.array_equal(imputed[name][mask[:, v]], model.complete(data)[0].arrays[v][mask[:, v]])


def test_models_without_what_fills_refuse_empty_cells(fitted, tmp_path):
    """As the first models of format 2, and those that were fitted with fill='error'."""
    model, data, _, _ = fitted
    whole, _ = model.complete(data)
    strict = URRL(2, **TINY, fill="error", random_state=0).fit(whole)
    strict.save(tmp_path)
    loaded = URRL.load(tmp_path)
    assert np.array_equal(loaded.predict(whole), strict.labels_)
    with pytest.raises(DataError, match=r"view 'rna', row .*: the cell is empty, and nothing fills it"):
        loaded.predict(data)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest.pop("fill") == "error"
    from viewfuse.fitted.manifest import checksum

    manifest.pop("checksum")
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    assert np.array_equal(URRL.load(tmp_path).predict(whole), strict.labels_)


def test_baselines_fill_empty_cells_as_well(fitted):
    _, data, labels, _ = fitted
    with pytest.warns(EmptyCellsWarning, match="empty cells were filled: rna"):
        found = baselines.kmeans_after_knn(data, 2)
    assert metrics.clustering_accuracy(labels, found) >= 0.9


def test_inspect_tells_of_empty_cells_and_of_too_many(tmp_path):
    frame = pd.DataFrame(make_blobs(30, 2, widths=(4,), missing=0.0)[0][0], columns=list("abcd"))
    frame.loc[[1, 2, 5], "b"] = NAN
    path = tmp_path / "rna.csv"
    frame.to_csv(path)
    shown = CliRunner().invoke(main, ["inspect", str(path)])
    assert "empty cells, which a fit fills, rna: 3 cells (2.5%) in columns 'b' (3)" in shown.output
    told = json.loads(CliRunner().invoke(main, ["inspect", str(path), "--json"]).output)
    assert told["views"][0]["empty"]["columns"] == {"b": 3}
    frame["b"] = NAN
    frame.to_csv(path)
    shown = CliRunner().invoke(main, ["inspect", str(path)])
    assert shown.exit_code == 0, shown.output
    assert "a fit refuses this: view 'rna': 30 cells" in shown.output


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_percent_of_empty_cells_cost_a_point_at_most():
    views, digits = load_handwritten()
    losses = []
    for seed in range(3):
        mask = paper_mask(len(digits), len(views), 0.5, 4, random_state=seed)
        shown = apply_mask(views, mask)
        before = metrics.clustering_accuracy(digits, URRL(10, random_state=seed).fit_predict(shown))
        with pytest.warns(EmptyCellsWarning):
            after = URRL(10, random_state=seed).fit_predict(with_empty_cells(shown, seed=seed))
        losses.append(100 * (before - metrics.clustering_accuracy(digits, after)))
    assert np.mean(losses) <= 1, losses


def test_equal_rows_are_filled_alike_alone_and_in_any_batch():
    rng = np.random.default_rng(0)
    donors = np.repeat(rng.normal(size=(20, 7)) * 3.1, 12, axis=0).astype(np.float32)
    donors[:, 6] = rng.normal(size=240)
    nearest = NearestRows(donors)
    rows = donors[rng.permutation(240)].copy()
    rows[:, 6] = np.nan
    together = nearest.fill(rows)
    assert all(np.array_equal(nearest.fill(rows[i : i + 1])[0], together[i]) for i in range(0, 240, 3))


def test_a_value_far_out_beside_an_empty_cell_is_no_overflow():
    donors = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    found = NearestRows(donors).fill(np.array([[1e30, np.nan, 0.0]], dtype=np.float32))
    assert np.isfinite(found).all()
