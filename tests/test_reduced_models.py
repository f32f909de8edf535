"""A whole model behind front ends: what the network sees, what the user gets back, what is saved."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from viewfuse import URRL, Config, DataError, NotEnoughMemory, SettingError, Views, metrics
from viewfuse.baselines import knn_filled
from viewfuse.data.scaling import fit_scaler
from viewfuse.reduction.reduce import FrontEnd, Reduction, fit_front_end, fit_reduction
from viewfuse.selection import decision_texts
from viewfuse.selection.decisions import ViewReduction

QUICK = {"config": Config(embedding_dim=16, hidden_dim=16, pretrain_epochs=5, joint_epochs=1, learning_rate=2e-3)}


def counts_and_measurements(n=90, seed=0):
    """Counts of 400 genes and 6 measurements of three groups; a quarter of the counts is hidden."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n) % 3
    rates = np.full((3, 400), 0.3)
    for g in range(3):
        rates[g, 40 * g : 40 * g + 40] = 6.0
    counts = rng.poisson(rates[groups] * rng.uniform(0.5, 2.0, size=(n, 1))).astype(np.float32)
    measured = (rng.normal(size=(n, 6)) + 3 * groups[:, None]).astype(np.float32)
    mask = np.ones((n, 2), dtype=bool)
    mask[::4, 0] = False
    return counts, measured, mask, groups


@pytest.fixture(scope="module")
def fitted():
    counts, measured, mask, _ = counts_and_measurements()
    names = [f"g{c}" for c in range(400)], list("uvwxyz")
    views = Views({"genes": sparse.csr_array(counts), "vitals": measured}, mask=mask, columns=names)
    return URRL(3, random_state=0, scaling="mixed", **QUICK).fit(views), views


@pytest.mark.slow
def test_the_network_sees_few_columns_and_finds_the_groups(fitted):
    model, _ = fitted
    assert [view.shape[1] for view in model._model.stored.values] == [10, 6]
    assert metrics.clustering_accuracy(counts_and_measurements()[3], model.labels_) > 0.9
    decision = model.decisions_["reduction"]
    assert decision["chosen"] == {"genes": "counts", "vitals": "none"}
    assert decision["columns"] == {"genes": [400, 10], "vitals": [6, 6]}
    assert decision["why"].startswith("reduction: genes, counts, from 400 to 10 columns (equal row sums, logarithms")


def test_dense_views_give_the_model_of_sparse_ones_and_what_is_hidden_never_reaches_it(fitted):
    model, _ = fitted
    counts, measured, mask, _ = counts_and_measurements()
    counts[~mask[:, 0]] = 1e6
    again = URRL(3, random_state=0, scaling="mixed", **QUICK).fit(
        Views({"genes": counts, "vitals": measured}, mask=mask)
    )
    assert again.embedding_ == pytest.approx(model.embedding_, abs=1e-4)
    assert np.array_equal(again.labels_, model.labels_)


def test_front_ends_look_at_observed_rows_only_and_leave_hidden_ones_empty():
    counts, measured, mask, _ = counts_and_measurements()
    views = Views({"genes": counts, "vitals": measured}, mask=mask)
    found = fit_reduction(views)
    seen = mask[:, 0]
    alone = fit_front_end(counts[seen], np.ones(seen.sum(), dtype=bool))
    assert found.front_ends[0].mean == pytest.approx(alone.mean, abs=1e-6)
    assert found.front_ends[0].kind == alone.kind
    assert not found.apply(views).arrays[0][~seen].any()


def test_training_samples_are_recognised_and_sequencing_depth_does_not_matter(fitted):
    model, views = fitted
    assert np.array_equal(model.predict(views), model.labels_)
    assert np.array_equal(model.predict_proba(views[:7]), model.soft_labels_[:7])
    deeper = views.replace(arrays=(views.arrays[0] * np.float32(4), views.arrays[1]))
    assert np.array_equal(model.predict(deeper), model.labels_)


def test_filled_views_have_the_columns_and_the_range_of_the_data(fitted):
    model, views = fitted
    filled = model.impute(views)
    observed = views.dense().arrays[0][views.mask[:, 0]]
    assert filled.arrays[0].shape == (90, 400)
    assert np.array_equal(filled.arrays[0][views.mask[:, 0]], observed)
    missing = filled.arrays[0][~views.mask[:, 0]]
    assert missing.min() >= 0
    assert (missing <= observed.max(axis=0)).all()
    assert missing[0, :40].mean() > 3 * missing[0, 120:].mean()  # the first sample is of the first group


def test_features_have_the_names_of_the_data(fitted):
    model, views = fitted
    tops = {row.feature for row in model.explain(views).differences if row.view == "genes"}
    assert tops <= {f"g{c}" for c in range(120)}


def test_a_saved_model_carries_its_front_ends(fitted, tmp_path):
    model, views = fitted
    model.save(tmp_path / "model")
    again = URRL.load(tmp_path / "model")
    assert np.array_equal(again.predict_proba(views), model.predict_proba(views))
    assert np.array_equal(again.impute(views).arrays[0], model.impute(views).arrays[0])
    assert again.decisions_["reduction"]["chosen"] == model.decisions_["reduction"]["chosen"]


def test_a_view_that_is_absent_in_new_samples(fitted):
    model, views = fitted
    alone = model.predict({"vitals": views.arrays[1][:12]})
    assert (alone == model.labels_[:12]).mean() > 0.9


def test_the_user_can_name_the_reduction():
    counts, measured, mask, _ = counts_and_measurements()
    views = Views({"genes": counts, "vitals": measured}, mask=mask)
    assert [one.how for one in fit_reduction(views, {"genes": "pca"}).front_ends] == ["pca", "none"]
    untouched = fit_reduction(views, "none")
    assert untouched.apply(views).arrays[0] is views.arrays[0]
    with pytest.raises(SettingError, match=r"reduction must be one of auto, none, pca, .* got 'svd'"):
        URRL(3, reduction="svd").fit(views)
    with pytest.raises(SettingError, match="reduction names the view 'rna', but the views are genes, vitals"):
        URRL(3, reduction={"rna": "pca"}).fit(views)
    with pytest.raises(DataError, match=r"view 'vitals': .*for values of at least 0"):
        fit_reduction(views, {"vitals": "counts"})


def units_of(*hows):
    views = Views([np.random.default_rng(0).poisson(0.05, size=(30, 60)).astype(np.float32) for _ in hows])
    return fit_reduction(views, dict(zip(views.names, hows, strict=True))).units


def test_units_follow_the_front_ends():
    assert units_of("words", "words") == ("rows", "rows")
    assert units_of("words", "none") == ("view", "columns")
    assert units_of("pca", "none", "counts") == ("view", "columns", "view")


@pytest.mark.parametrize("kind", ["mixed", "standard", "minmax"])
def test_columns_of_one_unit_are_divided_by_one_number(kind):
    rng = np.random.default_rng(0)
    views = Views([rng.normal(size=(50, 3)) * [1.0, 5.0, 0.2], rng.normal(size=(50, 2))])
    rows, whole, _ = (fit_scaler(views, kind, (unit, "columns")) for unit in ("rows", "view", "columns"))
    for scaler in (rows, whole):
        assert len(set(scaler.factors[0].tolist())) == 1
    assert np.ptp(rows.apply(views).arrays[0], axis=0).max() == pytest.approx(0.5)
    if kind == "minmax":
        assert np.ptp(whole.apply(views).arrays[0], axis=0).max() == pytest.approx(1.0)
    else:
        assert whole.apply(views).arrays[0].var(axis=0).mean() == pytest.approx(1.0)


@pytest.mark.slow
def test_texts_are_trained_with_one_scaling():
    rng = np.random.default_rng(0)
    topics = np.arange(60) % 2
    rates = np.where(np.arange(200) % 2 == topics[:, None], 0.12, 0.01)
    words = [sparse.csr_array(rng.poisson(rates)) for _ in range(2)]
    model = URRL(2, random_state=0, **QUICK).fit(words)
    assert model.decisions_["scaling"]["why"].startswith("scaling: mixed, as all others do the same here")
    assert set(model.decisions_["reduction"]["chosen"].values()) == {"words"}


@pytest.mark.parametrize("kind", ["none", "view", "mixed", "standard", "minmax"])
@pytest.mark.parametrize("unit", ["rows", "view", "columns"])
def test_scaled_views_come_back(kind, unit):
    views = Views([np.random.default_rng(0).normal(size=(20, 3)) * [1.0, 4.0, 9.0] + 5])
    scaler = fit_scaler(views, kind, (unit,))
    assert scaler.undo(0, scaler.apply(views).arrays[0]) == pytest.approx(views.arrays[0], abs=1e-5)


def test_an_offset_costs_no_digits():
    """Else a training sample would not be recognised where it comes alone."""
    rng = np.random.default_rng(0)
    view = (rng.normal(size=(200, 8)) @ rng.normal(size=(8, 300)) + rng.normal(size=(200, 300)) + 1e5).astype(
        np.float32
    )
    front_end = fit_front_end(view, np.ones(200, dtype=bool))
    together = front_end.apply(view)
    assert all(np.array_equal(front_end.apply(view[i : i + 1])[0], together[i]) for i in range(200))


def test_a_column_that_hardly_varies_breaks_nothing():
    view = np.random.default_rng(0).normal(size=(60, 300))
    view[:, 0] *= 1e-40
    view[:, 1] *= 1000
    assert np.isfinite(
        fit_front_end(view.astype(np.float32), np.ones(60, dtype=bool)).apply(view.astype(np.float32))
    ).all()


def test_a_training_that_cannot_fit_is_refused_before_it_begins(monkeypatch):
    counts, measured, mask, _ = counts_and_measurements()
    views = Views({"genes": counts, "vitals": measured}, mask=mask)
    monkeypatch.setattr("viewfuse.utils.memory.available", lambda: 50_000_000)
    with pytest.raises(NotEnoughMemory, match=r"columns genes 400, vitals 6 .*needs about .*use reduction='auto'"):
        URRL(3, reduction="none").fit(views)
    with pytest.raises(NotEnoughMemory, match="n_neighbors=100000"):
        URRL(3, config=Config(n_neighbors=100_000)).fit(views)


def test_words_are_told_as_they_were_treated():
    rng = np.random.default_rng(0)
    terms = rng.poisson(0.05, size=(40, 100)).astype(np.float32)
    views = Views({"raw": terms, "weighted": terms * np.float32(0.37)})
    why = decision_texts.words(ViewReduction(**fit_reduction(views).facts(views)))
    assert "raw, words, from 100 to 10 columns (tf-idf, unit length" in why
    assert "weighted, words, from 100 to 10 columns (logarithms, unit length" in why
    untouched = ViewReduction(**fit_reduction(views, "none").facts(views, "none"))
    assert decision_texts.words(untouched) == "none, as asked"


BROKEN = (
    ({"how": "auto"}, {}),
    ({"length": "x"}, {}),
    ({"length": float("nan")}, {}),
    ({"transform": {"name": "zzz", "typical": 1.0}}, {}),
    ({"transform": {"name": "log", "typical": "x"}}, {}),
    ({"transform": {"name": "standard", "typical": 1.0}}, {}),
    ({}, {"axes": np.zeros((400, 2, 2), np.float32)}),
    ({}, {"axes": np.zeros((400, 2))}),
    ({}, {"mean": np.full(400, np.nan, np.float32)}),
    ({}, {"low": np.full(400, 9e9, np.float32)}),
)


@pytest.mark.parametrize(("facts", "arrays"), BROKEN)
def test_a_made_up_front_end_is_refused(fitted, facts, arrays):
    found = fitted[0]._model.reduction.front_ends[0]
    found.check(400)
    made_up = FrontEnd.from_saved({**found.facts(), **facts}, {**found.arrays(), **arrays})
    with pytest.raises(ValueError, match="the front end is not one of 400 columns"):
        made_up.check(400)


def test_simple_alternatives_begin_with_the_same_front_end():
    counts, measured, mask, _ = counts_and_measurements()
    views = Views({"genes": counts, "vitals": measured}, mask=mask)
    assert knn_filled(views).shape == (90, 16)


def test_an_empty_reduction_has_nothing_to_say():
    assert Reduction(()).units == ()
