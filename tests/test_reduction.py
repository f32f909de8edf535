"""The front end of a view: kinds are recognised, fields' transformations hold, hidden rows have no say."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from benchmarks.studies.reduction.binary import drawn
from viewfuse.errors import DataError, SettingError
from viewfuse.reduction import components
from viewfuse.reduction.reduce import FrontEnd, fit_front_end, kind_of

WIDE = 300
REDUCING = ("pca", "standard", "log1p", "counts", "words", "links")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def everyone(values) -> np.ndarray:
    return np.ones(values.shape[0], dtype=bool)


def low_rank(n: int = 60, rank: int = 4, seed: int = 0) -> np.ndarray:
    source = rng(seed)
    return (source.normal(size=(n, rank)) @ source.normal(size=(rank, WIDE)) + 3).astype(np.float32)


def gene_counts(n: int = 60, seed: int = 0) -> np.ndarray:
    source = rng(seed)
    profile = source.lognormal(0, 1.5, size=(3, WIDE))[np.arange(n) % 3]
    return source.poisson(profile * source.uniform(0.5, 3, size=(n, 1))).astype(np.float32)


def texts(n: int = 60, seed: int = 0) -> np.ndarray:
    source = rng(seed)
    topics = source.dirichlet(np.full(WIDE, 0.03), size=3)[np.arange(n) % 3]
    return np.stack([source.multinomial(40, topic) for topic in topics]).astype(np.float32)


def mixed_units(n: int = 60, seed: int = 0) -> np.ndarray:
    """Three groups told apart by 295 columns, and five that are large and say nothing."""
    source = rng(seed)
    values = source.normal(size=(n, WIDE)) + 2 * source.normal(size=(3, WIDE))[np.arange(n) % 3]
    values[:, -5:] = 1e4 * source.normal(size=(n, 5))
    return values.astype(np.float32)


def long_tails(n: int = 60, seed: int = 0) -> np.ndarray:
    """Prices or areas of three groups: each value a factor of its group's."""
    source = rng(seed)
    return (source.lognormal(2, 1, size=(3, WIDE))[np.arange(n) % 3] * source.lognormal(0, 0.1, (n, WIDE))).astype("f4")


def links(n: int = 60, seed: int = 0) -> np.ndarray:
    """Who cites whom among three groups: all cite the hub of their group, and one or two others."""
    source = rng(seed)
    values = np.zeros((n, WIDE), np.float32)
    values[np.arange(n), np.arange(n) % 3] = 1
    for row, count in enumerate(source.integers(1, 3, n)):
        values[row, source.choice(np.arange(3, 40), count, replace=False, p=np.arange(1, 38) / 703)] = 1
    return values


TABLES = {
    "pca": low_rank, "standard": mixed_units, "log1p": long_tails, "counts": gene_counts, "words": texts,
    "links": links,
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (low_rank(), "measurements"),
        (gene_counts(), "counts"),
        (texts(), "words"),
        (texts() * 0.37, "words"),
        (rng().integers(0, 256, size=(60, WIDE)), "intensities"),
        (rng().random((60, WIDE)), "intensities"),
        (rng().lognormal(0, 3, size=(60, WIDE)), "counts"),
        ((rng().random((60, WIDE)) < 0.3), "binary"),
        ((rng().random((60, WIDE)) < 0.03), "words"),
        (links(), "links"),
        (np.zeros((60, WIDE)), "measurements"),
        (rng().poisson(rng(1).lognormal(-5, 2.5, 15_000), size=(60, 15_000)), "counts"),
    ],
    ids=[
        "measured",
        "genes",
        "terms",
        "weighted",
        "pixels",
        "shares",
        "per-million",
        "yes-no",
        "tags",
        "citations",
        "zeros",
        "cells",
    ],
)
def test_kinds_are_recognised(values, name):
    values = values.astype(np.float32)
    kind = kind_of(values, everyone(values))
    assert kind.name == name
    assert asdict(kind_of(sp.csr_matrix(values), everyone(values))) == pytest.approx(asdict(kind))


@pytest.mark.parametrize("change", ["one cell", "one column", "all"])
def test_counts_with_decimals_are_counts(change):
    """One cell that was corrected, or expected counts: as measurements they would be told apart by depth."""
    values = gene_counts().astype(np.float32) * 20
    if change == "one cell":
        values[3, 5] += 0.5
    elif change == "one column":
        values[:, 5] += 0.25
    else:
        values += np.where(values > 0, rng().random(values.shape), 0).astype(np.float32)
    assert fit_front_end(values, everyone(values)).how == "counts"


def test_tables_of_many_units_are_no_counts():
    """Age, income and shares: the tail lies between columns."""
    n = 200
    values = np.c_[rng().normal(60, 10, (n, 30)), rng().lognormal(9, 0.3, (n, 10)), rng().random((n, 60))]
    kind = kind_of(values.astype(np.float32), everyone(values))
    assert kind.largest > 100
    assert kind.tail > 10
    assert kind.name == "intensities"


def test_kinds_say_what_they_saw():
    values = np.array([[0, 2, 0, 4], [0, 0, 0, 1.5], [-9, -9, -9, -9]], dtype=np.float32)
    kind = kind_of(values, np.array([True, True, False]))
    assert (kind.zeros, kind.whole, kind.least, kind.largest, kind.per_row) == (5 / 8, 2 / 3, 0, 4, 1.5)
    assert kind.tail == pytest.approx(4 / 2.5)


def test_least_is_no_zero_where_no_cell_is_zero():
    kind = kind_of(np.full((4, 2), 3, np.float32), np.ones(4, dtype=bool))
    assert (kind.least, kind.largest, kind.zeros) == (3, 3, 0)


@pytest.mark.parametrize("how", REDUCING)
@given(seed=st.integers(0, 1000))
@settings(max_examples=2, deadline=None)
def test_sparse_is_as_dense(how, seed):
    values, present = TABLES[how](seed=seed), rng(seed).random(60) < 0.7
    dense = fit_front_end(values, present, how).apply(values)
    sparse = fit_front_end(sp.csr_matrix(values), present, how).apply(sp.csc_matrix(values))
    np.testing.assert_allclose(sparse, dense, atol=1e-5 * np.abs(dense).max())


def test_sparse_is_as_dense_where_rows_are_many():
    values = gene_counts(n=320) + 5
    dense, sparse = (fit_front_end(table, everyone(values), "pca") for table in (values, sp.csr_matrix(values)))
    assert sparse.kept == pytest.approx(dense.kept)
    reduced = dense.apply(values)
    np.testing.assert_allclose(sparse.apply(values), reduced, atol=1e-5 * np.abs(reduced).max())


@pytest.mark.parametrize("kind", sorted({*REDUCING} - {"log1p"}))  # nothing in the data says that
def test_auto_takes_what_suits_the_kind(kind):
    values = TABLES[kind]()
    assert fit_front_end(values, everyone(values)).how == kind


@pytest.mark.parametrize("how", REDUCING)
@given(seed=st.integers(0, 1000))
@settings(max_examples=2, deadline=None)
def test_order_of_columns_does_not_matter(how, seed):
    values, order = TABLES[how](seed=seed), rng(seed).permutation(WIDE)
    one = fit_front_end(values, everyone(values), how).apply(values)
    other = fit_front_end(values[:, order], everyone(values), how).apply(values[:, order])
    np.testing.assert_allclose(other, one, atol=1e-4 * np.abs(one).max())


def test_order_of_columns_does_not_matter_to_iteration(monkeypatch):
    monkeypatch.setattr(components, "_EXACT", 10)
    test_order_of_columns_does_not_matter.hypothesis.inner_test("words", 3)


@pytest.mark.parametrize("how", REDUCING)
@pytest.mark.parametrize("hidden", [np.nan, 1e6])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_hidden_rows_have_no_say(how, hidden, make):
    values, present = TABLES[how](), rng(1).random(60) < 0.6
    other = values.copy()
    other[~present] = hidden
    one, two = (fit_front_end(make(table), present, "auto") for table in (values, other))
    assert one.facts() == two.facts()
    for name, array in one.arrays().items():
        np.testing.assert_array_equal(two.arrays()[name], array)
    reduced = two.apply(make(other), present)
    assert not reduced[~present].any()
    np.testing.assert_array_equal(reduced, one.apply(make(values), present))


def test_depth_of_a_row_does_not_matter_to_counts():
    values = gene_counts()
    front_end = fit_front_end(values, everyone(values), "counts")
    deeper = values * np.where(np.arange(60) == 7, 5, 1)[:, None].astype(np.float32)
    before, after = front_end.apply(values), front_end.apply(deeper)
    np.testing.assert_allclose(after, before, atol=1e-4)
    assert np.abs(fit_front_end(values, everyone(values), "pca").apply(deeper)[7] - before[7]).max() > 1


@pytest.mark.parametrize(("how", "told_apart"), [("auto", True), ("pca", False)])
def test_columns_of_other_units_do_not_drown_the_rest(how, told_apart):
    values = mixed_units()
    reduced = fit_front_end(values, everyone(values), how).apply(values)
    centers = np.stack([reduced[group::3].mean(axis=0) for group in range(3)])
    nearest = ((reduced[:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    assert ((nearest == np.arange(60) % 3).mean() > 0.95) == told_apart


def test_log1p_is_the_components_of_logarithms_and_keeps_a_lone_column():
    values = long_tails()
    logs = np.log1p(values.astype(np.float64))
    found, plain = fit_front_end(values, everyone(values), "log1p"), fit_front_end(logs, everyone(values), "pca")
    np.testing.assert_allclose(abs(found.apply(values)), abs(plain.apply(logs)), atol=1e-3)
    lone = values[:, :1]
    kept = fit_front_end(lone, everyone(lone), "log1p")
    np.testing.assert_allclose(kept.invert(kept.apply(lone)), lone, rtol=1e-3)


def test_samples_with_many_ones_are_no_kind_of_their_own():
    """Three kinds of mutations, of which samples have few or many: components showed the number of these alone."""
    table, kinds = drawn(500, 0.2, 0.5, 0)
    assert clustered(fit_front_end(table, everyone(table)).apply(table), kinds) > 0.8
    assert clustered(fit_front_end(table, everyone(table), "pca").apply(table), kinds) < 0.1


def clustered(points, kinds):
    return adjusted_rand_score(kinds, KMeans(3, n_init=2, random_state=0).fit_predict(points))


@pytest.mark.parametrize(("share", "how"), [(0.2, "links"), (0.08, "words"), (0.005, "links")])
def test_tables_of_zeros_and_ones_are_called_binary(share, how):
    """Mutations were called words; they are reduced in ways that make up for samples with many of them."""
    values = (rng().random((60, 2 * WIDE)) < share).astype(np.float32)
    assert (fit_front_end(values, everyone(values)).how, kind_of(values, everyone(values)).said) == (how, "binary")
    for other, name in ((2 * values, "intensities" if share == 0.2 else "words"), (values - 0.5, "measurements")):
        assert kind_of(other, everyone(other)).said == name


def test_length_of_a_text_hardly_matters_to_words():
    values = (texts() > 0).astype(np.float32)  # log(1 + x) of 0 and 1 keeps proportions
    front_end = fit_front_end(values, everyone(values), "words")
    np.testing.assert_allclose(front_end.apply(values * 3), front_end.apply(values), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(front_end.apply(values), axis=1), 1, atol=1e-6)


def test_rare_words_weigh_more_and_given_weights_stand():
    values = texts()
    assert set(fit_front_end(values, everyone(values)).transform.weights.shape) == {WIDE}
    weights, common = fit_front_end(values, everyone(values)).transform.weights, (values > 0).sum(axis=0)
    assert weights[common.argmax()] == weights.min() < weights[common.argmin()]
    assert fit_front_end(values * 0.3, everyone(values)).transform.name == "weighted"


@pytest.mark.parametrize("rounds", [False, True], ids=["exact", "iteration"])
def test_low_rank_data_come_back(monkeypatch, rounds):
    if rounds:
        monkeypatch.setattr(components, "_EXACT", 10)
    values = low_rank()
    front_end = fit_front_end(values, everyone(values))
    reduced = front_end.apply(values)
    assert reduced.shape == (60, 4)
    assert reduced.dtype == np.float32
    assert front_end.kept == pytest.approx(1)
    np.testing.assert_allclose(front_end.invert(reduced), values, atol=1e-3)


def test_counts_and_words_come_back_nearly():
    for how in ("counts", "words"):
        values = np.repeat(TABLES[how](n=3), 20, axis=0)
        front_end = fit_front_end(values, everyone(values), how)
        back = front_end.invert(front_end.apply(values))
        assert np.corrcoef(back.ravel(), values.ravel())[0, 1] > 0.97
        assert np.median(back.sum(axis=1)) == pytest.approx(np.median(values.sum(axis=1)), rel=0.2)


def test_words_come_back_with_their_length():
    values = texts(n=300)
    front_end = fit_front_end(values, everyone(values))
    rows = front_end.transform.apply(values)
    lengths = np.linalg.norm(rows @ front_end.axes, axis=1)
    assert front_end.length == pytest.approx(np.median(lengths), rel=1e-5)
    assert front_end.length < 0.95
    plain = front_end.transform.undo(rows @ front_end.axes @ front_end.axes.T)
    expected = np.clip(plain, front_end.low, front_end.high)
    typical = np.abs(lengths - front_end.length).argmin()
    np.testing.assert_allclose(front_end.invert(front_end.apply(values))[typical], expected[typical], atol=0.05)


@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_constant_columns_are_not_blown_up(make):
    values, constants = mixed_units(n=59).astype(np.float64), rng().random(50)
    values[:, :50] = constants
    front_end = fit_front_end(make(values), everyone(values), "standard")
    assert (front_end.transform.weights[:50] == 1).all()
    np.testing.assert_array_equal(
        front_end.invert(front_end.apply(make(values)))[:, :50], np.tile(constants.astype(np.float32), (59, 1))
    )


@pytest.mark.parametrize("how", REDUCING)
def test_no_value_leaves_its_range(how):
    values = TABLES[how]()
    front_end = fit_front_end(values, everyone(values), how)
    back = front_end.invert(front_end.apply(values) * 50)
    assert (back >= values.min(axis=0)).all()
    assert (back <= values.max(axis=0)).all()


def test_the_three_ways_to_solve_agree(monkeypatch):
    tall, wide = low_rank(n=400, rank=9), low_rank(n=80, rank=9)
    exact = [fit_front_end(table, everyone(table), "pca").apply(table) for table in (tall, wide)]
    monkeypatch.setattr(components, "_EXACT", 10)
    for table, reduced in zip((tall, wide), exact, strict=True):
        centred = table - table.mean(axis=0)
        np.testing.assert_allclose(
            np.linalg.norm(reduced, axis=0), np.linalg.svd(centred)[1][: reduced.shape[1]], rtol=1e-4
        )
        iterated = fit_front_end(table, everyone(table), "pca").apply(table)
        np.testing.assert_allclose(iterated, reduced, atol=1e-3 * np.abs(reduced).max())


def test_parts_make_the_whole(monkeypatch):
    values = gene_counts()
    for how in REDUCING:
        whole = fit_front_end(values, everyone(values), how)
        reduced, back = whole.apply(values), whole.invert(whole.apply(values))
        with monkeypatch.context() as small:
            small.setattr("viewfuse.data.input_types._CELLS_AT_A_TIME", 7 * WIDE)
            parted = fit_front_end(values, everyone(values), how)
            np.testing.assert_allclose(parted.apply(values), reduced, atol=1e-5 * np.abs(reduced).max())
            np.testing.assert_allclose(whole.invert(reduced), back)
        assert parted.kind.name == whole.kind.name


def test_narrow_views_pass_as_the_same_object():
    values = gene_counts()[:, :64]
    front_end = fit_front_end(values, everyone(values))
    assert front_end.apply(values) is values
    assert front_end.invert(values) is values
    assert front_end.columns == 64
    np.testing.assert_array_equal(front_end.apply(sp.csr_matrix(values)), values)


@pytest.mark.parametrize(("samples", "most"), [(60, 64), (259, 64), (260, 65), (400, 100), (1024, 256), (2000, 256)])
def test_how_many_columns_are_narrow(samples, most):
    values = rng().normal(size=(samples, most + 1)).astype(np.float32)
    some = np.arange(samples) % 3 > 0  # samples that lack the view count as well
    ends = [fit_front_end(values[:, :width], some).how for width in (most, most + 1)]
    assert ends == ["none", "pca"]


def test_words_are_reduced_from_fifty_columns_on():
    values = texts()
    ends = {width: fit_front_end(values[:, :width], everyone(values)) for width in (50, 51)}
    assert {width: (end.kind.name, end.how) for width, end in ends.items()} == {
        50: ("words", "none"),
        51: ("words", "words"),
    }


def test_how_many_components():
    tables = {n: rng().normal(size=(n, WIDE)).astype(np.float32) for n in (5, 60, 400, 3000)}
    counts = {n: fit_front_end(table, everyone(table)).columns for n, table in tables.items()}
    assert counts == {5: 4, 60: 10, 400: 20, 3000: 50}


@pytest.mark.parametrize("how", REDUCING)
@pytest.mark.parametrize("make", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_hard_cases_stay_finite(how, make):
    empty_rows = TABLES[how]() * (np.arange(60) % 5 > 0)[:, None].astype(np.float32)
    constant = np.full((60, WIDE), 7, np.float32)
    cases = [empty_rows, constant, constant * 0, TABLES[how](n=1), TABLES[how](n=2)]
    for values in map(np.abs, cases):
        front_end = fit_front_end(make(values), everyone(values), how)
        reduced = front_end.apply(make(values))
        assert reduced.shape == (len(values), front_end.columns)
        assert front_end.columns >= 1
        assert np.isfinite(reduced).all()
        assert np.isfinite(front_end.invert(reduced)).all()


def test_one_present_row_and_none():
    values = low_rank()
    one = fit_front_end(values, np.arange(60) == 3)
    assert not one.apply(values, np.arange(60) == 3).any()
    np.testing.assert_allclose(one.invert(np.zeros((1, 1))), values[3:4])
    none = fit_front_end(values, np.zeros(60, dtype=bool))
    assert none.apply(values).shape == (60, 1)


@pytest.mark.parametrize("how", ["none", *REDUCING])
def test_saved_front_ends_come_back(how):
    values = TABLES.get(how, texts)()
    front_end = fit_front_end(values, everyone(values), how)
    facts = json.loads(json.dumps(front_end.facts()))
    again = FrontEnd.from_saved(facts, {name: array.copy() for name, array in front_end.arrays().items()})
    assert again.facts() == front_end.facts()
    np.testing.assert_array_equal(again.apply(values), front_end.apply(values))
    reduced = front_end.apply(values)
    np.testing.assert_array_equal(again.invert(reduced), front_end.invert(reduced))


def test_same_data_same_front_end():
    values = texts()
    one, two = (fit_front_end(values, everyone(values)).arrays() for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)


def test_the_input_is_not_changed():
    for make in (np.array, sp.csr_matrix):
        for how in REDUCING:
            values = make(TABLES[how]())
            before = values.copy()
            fit_front_end(values, everyone(values), how).apply(values)
            assert abs(values - before).max() == 0


def test_cells_stored_twice_count_once():
    values = sp.csr_matrix(texts())
    doubled = sp.csr_matrix(
        (np.repeat(values.data / 2, 2), np.repeat(values.indices, 2), values.indptr * 2), shape=values.shape
    )
    one, two = (fit_front_end(table, everyone(values)) for table in (values, doubled))
    assert one.facts() == two.facts()
    np.testing.assert_array_equal(two.apply(doubled), one.apply(values))
    assert doubled.nnz == 2 * values.nnz


def test_bad_settings_are_refused():
    values = low_rank()
    with pytest.raises(
        SettingError, match="how must be one of auto, none, pca, standard, log1p, counts, words, links; got 'tsne'"
    ):
        fit_front_end(values, everyone(values), "tsne")
    with pytest.raises(DataError, match="'words' is for values of at least 0"):
        fit_front_end(values, everyone(values), "words")
    with pytest.raises(DataError, match="the view has 299 columns, but its front end was fitted on 300"):
        fit_front_end(values, everyone(values)).apply(values[:, 1:])


def test_new_rows_below_zero_are_no_trouble():
    values = texts()
    front_end = fit_front_end(values, everyone(values))
    new = values.copy()
    new[0, :5] = -2
    clipped = np.maximum(new, 0)
    np.testing.assert_allclose(front_end.apply(new), front_end.apply(clipped), atol=1e-6)


@pytest.mark.parametrize("how", ["counts", "words"])
def test_one_column_is_not_made_a_constant(how):
    with pytest.raises(DataError, match=f"'{how}' would leave nothing of a view of one column; use 'log1p'"):
        fit_front_end(np.arange(20, dtype=np.float32)[:, None], np.ones(20, dtype=bool), how)
