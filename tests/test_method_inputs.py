"""Odd and bad input, the same for all methods: what URRL takes or refuses, and in which words, so do the others."""

from __future__ import annotations

import warnings
from dataclasses import fields

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

import viewfuse
from conftest import make_blobs
from test_methods import BRIEF
from viewfuse import Config, DataError, Diverged, SettingError, Views
from viewfuse.methods import ESTIMATORS, estimator_of

N = 24
SMALL = {"urrl": {"config": Config(pretrain_epochs=1, joint_epochs=1, hidden_dim=8, embedding_dim=8)}, **BRIEF}
NAMES = list(SMALL)
NETWORKS = [name for name in BRIEF if not name.startswith("kmeans") and name not in ("nemo", "pimvc")]
PLACING = [name for name in NAMES if name != "nemo"]

pytestmark = pytest.mark.filterwarnings(
    "ignore::viewfuse.EmptyClusterWarning",
    "ignore::viewfuse.SuspiciousDataWarning",
    "ignore::viewfuse.EmptyCellsWarning",
)


def small(name, n_clusters=2, **params):
    return estimator_of(name)(n_clusters, **{"random_state": 0, "device": "cpu", **SMALL[name], **params})


def whole(n=N, widths=(5, 8, 3)):
    return make_blobs(n, 2, widths, missing=0.0)[0]


def changed(v, rows, columns, value, dtype=np.float32):
    """Whole views, in one of which some cells are others."""
    views = [view.astype(dtype) for view in whole()]
    views[v][rows, columns] = value
    return views


@pytest.fixture(scope="module")
def gappy():
    """Views with NaN where they are missing, and zeros and fractions that 16 bits hold."""
    return [np.where(np.abs(view) < 1, 0, np.round(view * 8) / 8) for view in make_blobs(N, 2)[0]]


@pytest.fixture(scope="module")
def fitted(gappy):
    """Every method, fitted once, for a moment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", viewfuse.EmptyClusterWarning)
        return {name: small(name).fit(gappy) for name in NAMES}


def test_all_methods_are_here():
    assert set(NAMES) == set(ESTIMATORS)


# The same numbers in other forms.


def _read_only(array):
    array = np.asfortranarray(array.astype(np.float16))
    array.setflags(write=False)
    return array


def _strided(array):
    return np.repeat(array, 2, axis=0)[::2]


def _frames(views):
    """Each view has only the rows that are there, in another order; labels say which."""
    frames = {f"view_{v}": pd.DataFrame(x, index=[f"s{i}" for i in range(N)]) for v, x in enumerate(views)}
    return {name: frame.dropna(how="all").iloc[::-1] for name, frame in frames.items()}


def _in_order(model):
    """Labels in the order of the samples; samples may have names."""
    names = [str(one).lstrip("s") for one in model.ids_]
    return model.labels_[np.argsort([int(name) for name in names])]


FORMS = {
    "read-only float16 in Fortran order": lambda views: [_read_only(view) for view in views],
    "strided float64": lambda views: [_strided(view.astype(np.float64)) for view in views],
    "objects": lambda views: [view.astype(object) for view in views],
    "sparse": lambda views: Views(
        [sparse.csr_array(np.nan_to_num(view)) for view in views],
        mask=np.stack([~np.isnan(view[:, 0]) for view in views], axis=1),
    ),
    "lists": lambda views: [view.tolist() for view in views],
    "matrices": lambda views: [np.asmatrix(view) for view in views],
}
FEW = ("sparse",)
SOME = [n if n in ("nemo", "dcp", "kmeans-knn") else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
"""Forms are understood before a method sees the data: a network, and two that are none, are enough."""


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
@pytest.mark.parametrize("form", [f if f in FEW else pytest.param(f, marks=pytest.mark.slow) for f in FORMS])
@pytest.mark.parametrize("name", SOME)
def test_the_same_numbers_in_another_form_give_the_same_clusters(fitted, gappy, name, form):
    again = small(name).fit(FORMS[form](gappy))
    assert (again.labels_ == fitted[name].labels_).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_frames_with_the_rows_that_are_there_are_joined_by_their_labels(gappy, name):
    model = small(name).fit(_frames(gappy))
    assert sorted(model.ids_) == sorted(f"s{i}" for i in range(N))
    assert _in_order(model).shape == (N,)


# Odd numbers, which are taken.


def _all_at_once():
    """Empty cells, a constant column, twins, a view of one sample, one of a single column, huge and tiny numbers."""
    views = [view.astype(np.float64) for view in make_blobs(N, 2, (5, 8, 3, 1), missing=0.0)[0]]
    views[0][1] = views[0][0]
    views[0][:, 1] = 7
    views[0][5, 2] = np.nan
    views[2][1:] = np.nan
    return [views[0] * 1e30, views[1] * 1e-30, -abs(views[2]), views[3]]


TAKEN = {
    "all at once": _all_at_once,
    "all samples are one": lambda: [np.full((N, 3), 2.0), np.zeros((N, 2))],
    "a constant view": lambda: changed(0, slice(None), slice(None), 7),
    "an outlier": lambda: changed(0, 3, 1, 1e30),
    "views that never meet": lambda: [
        np.where(np.arange(N)[:, None] % 2 == v, x, np.nan) for v, x in enumerate(whole()[:2])
    ],
    "numbers near the largest": lambda: [view.astype(np.float64) * 1e37 for view in whole()],
    "numbers near the smallest": lambda: [view.astype(np.float64) * 1e-42 for view in whole()],
    "small integers": lambda: [np.clip(view * 3, -100, 100).astype(np.int8) for view in whole()],
    "truth values": lambda: [view > 0 for view in whole()],
    "more columns than samples": lambda: whole(8, (300, 3)),
    "one table": lambda: whole()[0],
    "nine views": lambda: [whole()[0] + v for v in range(9)],
    "as many samples as clusters": lambda: whole(2),
}


@pytest.mark.parametrize("case", [c if c == "all at once" else pytest.param(c, marks=pytest.mark.slow) for c in TAKEN])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "completer" else n for n in NAMES])
def test_odd_numbers_are_taken(name, case):
    views = TAKEN[case]()
    model = small(name).fit(views)
    assert model.labels_.dtype == np.int64
    assert set(model.labels_) <= {0, 1}
    if name in PLACING:
        shares = model.predict_proba(views)
        assert np.isfinite(model.embedding_).all()
        assert shares.sum(axis=1) == pytest.approx(np.ones(len(shares)), abs=1e-4)
        assert (shares.argmax(axis=1) == model.labels_).all()


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, N - 4])
@pytest.mark.parametrize("name", NAMES)
def test_any_number_of_clusters_that_samples_allow(gappy, name, k):
    assert set(small(name, k).fit(gappy).labels_) <= set(range(k))


@pytest.mark.parametrize("name", SOME)
def test_large_offsets_change_no_cluster(name):
    near = [view.astype(np.float64) for view in whole()]
    plain, far = (small(name).fit([view + offset for view in near]) for offset in (0.0, 1e9))
    assert adjusted_rand_score(plain.labels_, far.labels_) > 0.9


# Bad data and settings, which are refused.

BAD = {
    "no views": (lambda: [], "no views were given"),
    "no rows": (lambda: [view[:0] for view in whole()], "no rows"),
    "no columns": (lambda: [whole()[0], whole()[1][:, :0]], "'view_1' has no columns"),
    "one dimension": (lambda: [view[:, 0] for view in whole()], "'view_0' has 1 dimension"),
    "three dimensions": (lambda: [view[:, :, None] for view in whole()], "'view_0' has 3 dimension"),
    "unequal rows": (lambda: [whole()[0], whole()[1][:9]], "differing row counts"),
    "infinite": (lambda: changed(0, 3, 1, np.inf), "view 'view_0', row 3, column 1: the value is inf"),
    "too large": (lambda: changed(0, 3, 1, 1e60, np.float64), "row 3, column 1: 1e\\+60 is too large"),
    "too close": (lambda: [view.astype(np.float64) * 1e-60 for view in whole()], "differ by less than 32-bit"),
    "a word": (lambda: changed(1, 2, 0, "high", object), "'view_1', row 2, column 0: 'high' is not a number"),
    "text": (lambda: [view.astype(str) for view in whole()], "not real numbers"),
    "complex": (lambda: [view.astype(complex) for view in whole()], "Complex data not supported"),
    "a sample without views": (lambda: [np.where(np.arange(N)[:, None] == 4, np.nan, view) for view in whole()],
                               "row 4 has no view at all"),
    "a view nobody has": (lambda: changed(1, slice(None), slice(None), np.nan), "'view_1' is missing in every row"),
    "a view that is None": (lambda: [whole()[0], None], "'view_1' is missing in every row"),
    "an empty column": (lambda: changed(0, slice(1, None), 1, np.nan), "view 'view_0': 23 cells of its 24 rows"),
    "a name twice": (lambda: {"a": pd.DataFrame(whole()[0], index=[0] * N), "b": pd.DataFrame(whole()[1])},
                     "view 'a': row label 0 appears twice"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_bad_data_are_refused_with_their_place(name):
    for views, words in BAD.values():
        with pytest.raises(DataError, match=words):
            small(name).fit(views())
    with pytest.raises(DataError, match="row 3, column 1: the cell is empty"):
        small(name, fill="error").fit(changed(0, 3, 1, np.nan))


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_number_of_clusters_is_refused(name):
    for k in (0, -1, 2.0, "3", True, None):
        with pytest.raises(SettingError, match="n_clusters must be"):
            small(name, k).fit(whole())
    with pytest.raises(DataError, match=f"{N} samples are fewer than n_clusters={N + 1}"):
        small(name, N + 1).fit(whole())


WRONG = {
    "int": (0, -1, 1.5, float("nan"), "3", None, True, (3,)),
    "float": (-0.1, float("nan"), float("inf"), "3", None, True, (3,)),
    "bool": ("yes", None, 0.5),
    "Sequence[int]": (3, "3", None, (0,), (1.5,), [None]),
}


@pytest.mark.parametrize("name", BRIEF)
def test_wrong_values_of_every_parameter_are_refused(name):
    allowed = [("prediction_start", 0)]
    for one in fields(estimator_of(name)):
        for value in WRONG.get(one.type, ()):
            if (one.name, value) not in allowed:
                with pytest.raises(SettingError, match=f"^{one.name} must be"):
                    small(name, **{one.name: value}).fit(whole())


@pytest.mark.parametrize("name", NAMES)
def test_seeds_and_devices_that_are_none_are_refused(name):
    for seed in (-1, "a", 1.5):
        with pytest.raises(SettingError, match="random_state must be"):
            small(name, random_state=seed).fit(whole())
    if name != "nemo":  # whose page says that it has no use for a device
        with pytest.raises(SettingError, match="device 'abacus' cannot be used here"):
            small(name, device="abacus").fit(whole())


def test_settings_that_do_not_go_together_are_refused():
    with pytest.raises(SettingError, match="dropout must be a number of at least 0 and below 1; got 1"):
        small("sure", dropout=1).fit(whole())
    with pytest.raises(SettingError, match="n_heads must divide token_dim=16; got 3"):
        small("recformer", n_heads=3).fit(whole())


def test_rates_may_be_whole_numbers(gappy):
    assert small("dsimvc", virtual_rate=1).fit(gappy).labels_.shape == (N,)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("nemo", "pimvc")])
def test_unscaled_numbers_that_are_too_large_to_compare_are_refused(name):
    for size in (1e25, 1e37):
        with pytest.raises(Diverged, match="scaling='minmax'"):
            small(name, scaling="none").fit([view.astype(np.float64) * size for view in make_blobs(N, 2)[0]])


def test_a_weight_beyond_all_measure_is_refused(gappy):
    with pytest.raises(Diverged, match="not finite in round"):
        small("pimvc", graph_weight=1e30).fit(gappy)


def test_samples_that_are_all_one_are_said_to_be():
    with pytest.warns(viewfuse.EmptyClusterWarning, match="1 of 2 clusters are empty"):
        small("kmeans-mean").fit(TAKEN["all samples are one"]())


# New samples.


@pytest.mark.parametrize("name", PLACING)
def test_new_samples_in_any_form_with_any_view(fitted, gappy, name):
    model, labels = fitted[name], fitted[name].labels_
    as_dict = {f"view_{v}": np.asfortranarray(gappy[v].astype(np.float64)) for v in (2, 0, 1)}
    assert (model.predict(as_dict) == labels).all()
    one = [None, np.nan_to_num(gappy[1]).astype(np.float16), None]
    assert model.predict(one).shape == (N,)
    assert (model.predict([view[:1] for view in gappy]) == labels[:1]).all()


@pytest.mark.parametrize("name", PLACING)
def test_new_samples_that_do_not_fit_are_refused(fitted, gappy, name):
    model = fitted[name]
    for views, words in (
        ([view[:, :2] for view in gappy], "view_0"),
        (gappy[:2], "2 views"),
        ([view[:0] for view in gappy], "no rows"),
        ({"another": whole()[0]}, "another"),
        (changed(0, 3, 1, np.inf), "row 3, column 1"),
    ):
        with pytest.raises(DataError, match=words):
            model.predict(views)
    with pytest.warns(viewfuse.OutOfRangeWarning, match="1 of 24 samples"):
        assert np.isfinite(model.predict_proba(changed(0, 3, 1, 1e9))).all()
