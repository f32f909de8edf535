"""AnnData and MuData objects as views, and results back into them; what is no table is refused at once."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tracemalloc
import warnings
from pathlib import Path

import anndata
import mudata
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from anndata import AnnData
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import viewfuse
from viewfuse import URRL, Config, DataError, SettingError, Views, read_views
from viewfuse.io.writers import Results, annotate

pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore::UserWarning:mudata")
TINY = {
    "config": Config(embedding_dim=4, hidden_dim=8, pretrain_epochs=2, joint_epochs=0),
    "scaling": "standard",
    "random_state": 0,
    "device": "cpu",
}


def cells(values, names, columns=None):
    var = None if columns is None else pd.DataFrame(index=columns)
    return AnnData(values, obs=pd.DataFrame(index=list(names)), var=var)


@pytest.fixture
def rna():
    made = cells(sparse.csr_matrix(np.arange(8, dtype=np.float32).reshape(4, 2)), "abcd", ["g1", "g2"])
    made.layers["counts"] = sparse.csc_matrix(np.arange(8).reshape(4, 2) * 10)
    made.obsm["X_pca"] = np.arange(12, dtype=np.float32).reshape(4, 3)
    made.obsm["protein"] = pd.DataFrame({"cd3": [1.0, 2.0, np.nan, 4.0]}, index=list("abcd"))
    return made


@pytest.fixture
def protein():
    return cells(np.array([[30.0], [10.0], [50.0]]), "caz", ["cd4"])


@pytest.fixture
def both(rna, protein):
    return mudata.MuData({"rna": rna, "protein": protein})


def as_frames(rna, protein):
    return {"rna": rna.to_df(), "protein": protein.to_df()}


def same(found, expected):
    assert found.names == expected.names
    assert found.ids.tolist() == expected.ids.tolist()
    assert [list(names) for names in found.columns] == [list(names) for names in expected.columns]
    assert np.array_equal(found.mask, expected.mask)
    for one, other in zip(found.dense().arrays, expected.dense().arrays, strict=True):
        assert np.array_equal(one, other)


def test_objects_are_joined_by_the_names_of_their_cells(rna, protein, both):
    expected = Views(as_frames(rna, protein))
    assert expected.ids.tolist() == list("abcdz")
    same(Views({"rna": rna, "protein": protein}), expected)
    same(Views([rna, protein], names=["rna", "protein"]), expected)
    same(Views({"rna": rna, "protein": protein.to_df()}), expected)
    same(Views(both), expected)
    for views in (Views(both), Views([rna, protein])):
        assert [sparse.issparse(array) for array in views.arrays] == [True, False]
        assert isinstance(views.arrays[0], sparse.csr_array)
        assert views.arrays[0].nnz <= rna.X.nnz  # a missing row takes no room


def test_cells_come_in_the_joint_order(rna, protein, both):
    assert Views(both[["b"]]).mask.tolist() == [[True, False]]
    shuffled = both[list("zcadb")]
    assert Views(shuffled).ids.tolist() == shuffled.obs_names.tolist()
    both.mod["protein"] = protein[["a", "z"]].copy()
    both.mod["rna"] = cells(np.ones((2, 1), np.float32), ["c", "new"])  # obs still has b, and knows nothing of "new"
    assert Views(both).ids.tolist() == ["a", "c", "z", "new"]


@pytest.mark.slow
@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True),
       st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True), st.booleans(), st.integers(0, 99))  # fmt: skip
@settings(max_examples=25)
def test_objects_and_frames_say_the_same(first, second, is_sparse, seed):
    rng = np.random.default_rng(seed)
    frames = {"x": pd.DataFrame(rng.poisson(0.7, (len(first), 3)).astype(np.float32), index=first),
              "y": pd.DataFrame(rng.poisson(0.7, (len(second), 2)).astype(np.float32), index=second)}  # fmt: skip
    made = {}
    for name, frame in frames.items():
        frame.columns = [f"{name}{c}" for c in range(frame.shape[1])]
        values = sparse.csr_matrix(frame.to_numpy()) if is_sparse else frame.to_numpy()
        made[name] = cells(values, frame.index, frame.columns)
    if not set(first) & set(second):
        with pytest.raises(DataError, match="shares no row label"):
            Views(made)
        return
    same(Views(made), Views(frames))


def test_layers_and_obsm_can_be_chosen(rna, protein, both):
    chosen = Views(both, use={"rna": "layers/counts"})
    assert chosen.arrays[0].toarray()[3].tolist() == [60, 70]
    assert list(chosen.columns[0]) == ["g1", "g2"]
    assert Views({"rna": rna}, use={"rna": "obsm/X_pca"}).columns == ([0, 1, 2],)
    assert Views(rna, use="obsm/X_pca").widths == (3,)
    two = Views(rna, use={"rna": "X", "protein": "obsm/protein"})
    assert two.mask[:, 1].tolist() == [True, True, False, True]
    assert list(two.columns[1]) == ["cd3"]


def test_cells_without_names_are_matched_by_row():
    first, second = AnnData(np.ones((3, 2))), AnnData(np.ones((3, 1)))
    assert Views([first, second]).mask.all()
    with pytest.raises(DataError, match=r"differing row counts \('view_0' has 3, 'view_1' has 2\)"):
        Views([first, second[:2]])


def test_backed_objects_are_read(tmp_path, rna, protein):
    for name, one in {"rna": rna, "protein": protein}.items():
        one.write_h5ad(tmp_path / f"{name}.h5ad")
        backed = anndata.read_h5ad(tmp_path / f"{name}.h5ad", backed="r")
        same(Views({name: backed}), Views({name: one}))
        same(Views({name: backed[1:]}), Views({name: one[1:]}))
        backed.file.close()


class Rows:
    """As long as a table, and taken apart by whoever asks NumPy for an array of it; counts how often."""

    taken = 0
    shape = (600, 3)

    def __len__(self):
        return 600

    def __getitem__(self, row):
        if row >= 600:
            raise IndexError
        Rows.taken += 1
        return [1.0, 2.0, 3.0]


class Bare(Rows):
    shape = property()  # hasattr says no


ENDLESS = [[]]
ENDLESS[0].append(ENDLESS)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Rows(), "view 'view_0' is a Rows, which is no table; a view is a .* array, .* or AnnData"),
        (Bare(), "a Bare is no collection of views"),
        ({"rna": Rows()}, "view 'rna' is a Rows"),
        ([np.ones((600, 2)), Bare()], "view 'view_1' is a Bare"),
        ({"rna": [Rows(), Rows()]}, "view 'rna' is a list that holds Rows"),
        ([[[Rows(), 1.0]], [[1.0, 2.0]]], "view 'view_0' is a list that holds Rows"),
        ({"rna": {"a": [1.0]}}, "view 'rna' is a dict"),
        ({"rna": [{"a": 1.0}, {"a": 2.0}]}, "view 'rna' is a list that holds dict"),
        ({"rna": "rna.csv"}, "view 'rna' is a str, which is no table; .*; files are read by read_views"),
        ({"rna": (row for row in "ab")}, "view 'rna' is a generator"),
        ({"rna": torch.nn.Sequential(torch.nn.Linear(2, 2))}, "view 'rna' is a Sequential"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), "a Sequential is no collection of views"),
        ({"rna": pl.DataFrame({"x": [1.0]}).lazy()}, "view 'rna' is a LazyFrame"),
        ({"rna": ENDLESS}, "view 'rna' has more than 3 dimensions"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_refused_at_once_and_left_whole(data, words):
    Rows.taken, began = 0, time.perf_counter()
    for take in (Views, URRL(2).fit):
        with pytest.raises(DataError, match=words) as refused:
            take(data)
        assert "\n" not in str(refused.value)
    assert Rows.taken == 0
    assert time.perf_counter() - began < 1


def test_objects_in_wrong_places_are_refused(rna, protein, both, tmp_path):
    no_matrix = cells(None, "ab")
    with pytest.warns(UserWarning, match="not unique"):
        twice = cells(np.ones((2, 1)), "aa")
    nested = mudata.MuData({"all": both})
    by_features = mudata.MuData({"x": rna, "y": cells(np.ones((1, 2)), "e", ["g1", "g2"])}, axis=1)
    cases = [
        ([[rna, protein]], {}, "'view_0' is a list that holds AnnData"),
        ({"all": both}, {}, "view 'all' is a whole MuData; pass it alone"),
        (nested, {}, "view 'all' is a whole MuData"),
        (by_features, {}, r"share features, not cells \(axis=1\)"),
        (mudata.MuData({}), {}, "has no modality"),
        ({"x": no_matrix}, {}, "view 'x' has no 'X'; it has nothing"),
        ({"x": twice}, {}, "view 'x': cell 'a' appears twice; keep one"),
        (both, {"use": {"atac": "X"}}, r"use={'atac': 'X'} chooses .* there are \['rna', 'protein'\]"),
        (both, {"use": {"rna": "layers/raw"}}, "view 'rna' has no 'layers/raw'; it has X, layers/counts, obsm/X_pca"),
        (rna, {"use": "raw"}, "view 'view_0' has no 'raw'"),
        (rna, {"use": 5}, "use=5: give 'X', 'layers/NAME'"),
        (rna, {"use": {"rna": None}}, "use={'rna': None}: give 'X'"),
        ([np.ones((2, 2))], {"use": "X"}, r"of which there are \[\]; name these, or leave it out"),
    ]  # fmt: skip
    for data, options, words in cases:
        with pytest.raises(DataError, match=words):
            Views(data, **options)
    for what in (rna, [rna], both):
        with pytest.raises(DataError, match=r"paths of files are read here, not (AnnData|MuData); pass"):
            read_views(what)


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_two_features_of_one_name_are_refused(tmp_path):
    data = cells(np.ones((2, 3)), "ab", ["g", "h", "g"])
    data.write_h5ad(tmp_path / "rna.h5ad")
    said = r"view 'rna': two columns are called 'g'; .* \(AnnData: var_names_make_unique\(\)\)"
    for read in (lambda: Views({"rna": data}), lambda: read_views(tmp_path / "rna.h5ad")):
        with pytest.raises(DataError, match=said):
            read()
    data.var_names_make_unique()
    assert list(Views({"rna": data}).columns[0]) == ["g", "h", "g-1"]


def test_matrices_of_other_kinds_are_refused(rna):
    class Lazy:
        shape, dtype = (4, 2), np.dtype("f4")

    rna._X = Lazy()
    with pytest.raises(DataError, match="view 'view_0', 'X' is a Lazy; make it a NumPy array or a sparse matrix"):
        Views(rna)


def test_neither_package_is_imported_or_needed():
    code = "import sys, viewfuse, viewfuse.io.writers; viewfuse.Views([[[1.0]]]); sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    for path in Path(viewfuse.__file__).parent.rglob("*.py"):
        assert not re.search(r"^\s*(import|from) (anndata|mudata)\b", path.read_text(), re.M), path


# Results


def some_results(names, n_clusters=3):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(n_clusters), len(names)).astype(np.float32)
    embedding = rng.normal(size=(len(names), 2)).astype(np.float32)
    places = rng.normal(size=(len(names), 2)).astype(np.float32)
    return Results(np.array(names), probabilities, embedding, probabilities.argmax(axis=1), places)


def check_cell(data, key, name, results):
    row, place = results.ids.tolist().index(name), data.obs_names.get_loc(name)
    assert data.obs[key].iloc[place] == str(results.probabilities[row].argmax())
    assert data.obs[f"{key}_confidence"].iloc[place] == results.probabilities[row].max()
    assert np.array_equal(data.obsm[f"X_{key}"][place], results.embedding[row])
    if len(results.places):
        assert np.array_equal(data.obsm[f"X_{key}_map"][place], results.places[row])


def test_results_go_to_cells_by_name(rna, both, tmp_path):
    results = some_results(["z", "b", "a", "c"])
    for data in (both, rna):
        annotate(data, results, "groups")
        known = [name for name in "zbac" if name in data.obs_names]
        for name in known:
            check_cell(data, "groups", name, results)
        column = data.obs["groups"]
        assert column.cat.categories.tolist() == ["0", "1", "2"]
        assert data.obs_names[column.isna()].tolist() == ["d"]
        assert data.obs["groups_confidence"].dtype == data.obsm["X_groups"].dtype == np.float32
        place = data.obs_names.get_loc("d")
        assert np.isnan(data.obs["groups_confidence"].iloc[place])
        assert np.isnan(data.obsm["X_groups"][place]).all()
    annotate(rna, some_results(["d"], 2), "groups")  # replaces
    assert rna.obs["groups"].notna().tolist() == [False, False, False, True]
    both.update()
    both.write(tmp_path / "cells.h5mu")
    assert mudata.read_h5mu(tmp_path / "cells.h5mu").obs["groups"].dtype == "category"


def test_ids_that_are_numbers_find_cells_called_so():
    data = AnnData(np.ones((3, 2)))
    annotate(data, some_results([2, 0])._replace(ids=np.array([2, 0])))
    assert data.obs["viewfuse"].notna().tolist() == [True, False, True]


def test_results_that_belong_nowhere_are_refused(rna, both):
    results = some_results(["x", "y"])
    with pytest.raises(DataError, match=r"none of the cells, such as \['a'\], .* such as \['x'\]; .*annotate\("):
        annotate(rna, results)
    with pytest.raises(DataError, match="a DataFrame is none"):
        annotate(rna.obs, results)
    with pytest.raises(SettingError, match="key must be a name without '/'"):
        annotate(rna, some_results(["a"]), "a/b")
    mixed = np.empty(2, dtype=object)
    mixed[:] = [1, "1"]
    with pytest.raises(DataError, match="two samples have ids that are written alike"):
        annotate(rna, results._replace(ids=mixed))
    assert "viewfuse" not in rna.obs
    both.mod["protein"] = cells(np.ones((1, 1)), ["new"])
    with pytest.raises(DataError, match=r"a modality has cells that the MuData does not know of; call its update\(\)"):
        annotate(both, some_results(["a"]))


@pytest.fixture(scope="module")
def fitted():
    """A model of 40 cells, the object that it was fitted on, and another of ten new cells."""
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mudata's own
        made = []
        for names in ([f"cell{i}" for i in range(40)], [f"new{i}" for i in range(10)]):
            n = len(names)
            values = rng.normal(size=(n, 5)).astype(np.float32) + 4 * (np.arange(n) % 2)[:, None]
            first = cells(sparse.csr_matrix(values[: n - 4, :3]), names[: n - 4], ["g1", "g2", "g3"])
            second = cells(values[4:, 3:], names[4:], ["cd3", "cd4"])
            made.append(mudata.MuData({"rna": first, "protein": second}))
        return URRL(2, **TINY).fit(made[0]), *made


def test_a_model_takes_objects_wherever_it_takes_views(fitted):
    model, data, new = fitted
    assert model.ids_.tolist() == data.obs_names.tolist()
    assert model.view_names_ == ["rna", "protein"]
    views = Views(new)
    assert np.array_equal(model.predict(new), model.predict(views))
    assert np.array_equal(model.transform(dict(new.mod)), model.transform(views))
    turned = mudata.MuData({"protein": new["protein"], "rna": new["rna"]})
    labels = dict(zip(new.obs_names, model.predict(new), strict=True))
    assert model.predict(turned).tolist() == [labels[name] for name in turned.obs_names]
    assert model.predict({"protein": new["protein"]}).shape == (10 - 4,)
    filled = model.impute(new)
    assert [filled[name].shape for name in ("rna", "protein")] == [(10, 3), (10, 2)]
    with pytest.raises(DataError, match=r"1 view was given, but .* fitted on 2 .* a dict of the views by name"):
        model.predict(new["rna"])
    assert model.explain(new).samples().shape[0] == 10


def test_one_object_is_one_view(fitted):
    _, data, _ = fitted
    one = data["protein"]
    model = URRL(2, **TINY).fit(one)
    assert model.ids_.tolist() == one.obs_names.tolist()
    assert model.n_features_in_ == 2
    assert model.impute(one).shape == one.shape
    assert np.array_equal(model.predict(one[3:9]), model.labels_[3:9])


def test_annotate_writes_what_was_fitted_or_what_is_predicted(fitted):
    model, data, new = fitted
    model.annotate(data)
    results = Results(model.ids_, model.soft_labels_, model.embedding_, model.labels_)
    for name in data.obs_names:
        check_cell(data, "viewfuse", name, results)
    part = data["rna"][["cell9", "cell2"]].copy()
    model.annotate(part, key="k")
    for name in part.obs_names:
        check_cell(part, "k", name, results)
    with pytest.raises(DataError, match="none of the cells"):
        model.annotate(new)
    model.annotate(new, new)
    assert new.obs["viewfuse"].astype(int).tolist() == model.predict(new).tolist()
    assert np.array_equal(new.obsm["X_viewfuse"], model.transform(new))
    model.annotate(new["rna"], {"rna": new["rna"]})
    confidence = model.predict_proba({"rna": new["rna"]}).max(axis=1)
    assert np.array_equal(new["rna"].obs["viewfuse_confidence"], confidence)


def test_frames_of_embeddings_keep_the_ids(fitted):
    model, data, new = fitted
    try:
        model.set_output(transform="pandas")
        for given in (new, Views(new), dict(new.mod)):
            framed = model.transform(given)
            assert framed.index.tolist() == Views(new).ids.tolist()
            assert framed.columns[0] == "urrl0"
    finally:
        model.set_output(transform="default")
    again = URRL(2, **TINY).set_output(transform="pandas")
    assert again.fit_transform(data).index.tolist() == data.obs_names.tolist()
    several = pd.MultiIndex.from_product([list("ab"), range(5)])
    frames = {"x": pd.DataFrame(np.random.default_rng(0).normal(size=(10, 2)), index=several)}
    assert again.fit_transform(frames).index.equals(several)


@pytest.mark.slow
def test_fifty_thousand_cells_become_views_in_ten_seconds():
    rng = np.random.default_rng(0)
    names = np.array([f"cell{i}" for i in range(50_000)])
    made = {}
    for name, start in (("rna", 0), ("atac", 2_000)):
        own = rng.permutation(names[start : start + 48_000])
        made[name] = cells(sparse.random(48_000, 2_000, 0.05, "csr", np.float32, random_state=1), own)
    data = mudata.MuData(made)
    tracemalloc.start()
    began = time.perf_counter()
    views = Views(data)
    seconds, peak = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"{seconds:.1f} s, {peak / 1e6:.0f} MB at most beside the object")
    assert views.shape == (50_000, 2)
    assert seconds <= 10
    assert peak < 4 * sum(one.X.data.nbytes + one.X.indices.nbytes for one in made.values())


@pytest.mark.parametrize("others", [slice(10, None), slice(None, None, -1), slice(0, None, 2)])
def test_cells_with_names_by_number_are_joined_by_these_where_some_were_left_out(others):
    table = np.arange(120.0).reshape(60, 2)
    rna, protein = AnnData(table), AnnData(table.copy())
    views = Views({"rna": rna[:50], "protein": protein[others]})
    both = views.mask.all(axis=1)
    assert both.sum() == len(np.intersect1d(np.arange(50), np.arange(60)[others]))
    assert (views.arrays[0][both] == views.arrays[1][both]).all()
