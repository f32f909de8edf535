"""URRL as its users see it."""

from __future__ import annotations

import pickle
import re

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import silhouette_score
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from conftest import make_blobs
from flat import flat
from viewfuse import (
    URRL,
    Config,
    DataError,
    EmptyClusterWarning,
    OutOfRangeWarning,
    SettingError,
    SuspiciousDataWarning,
    Views,
    metrics,
)
from viewfuse.engine.replicates import replicate_seeds

SMALL = {
    "embedding_dim": 32,
    "hidden_dim": 32,
    "pretrain_epochs": 8,
    "joint_epochs": 4,
    "batch_size": 32,
    "learning_rate": 2e-3,
}


def small(n_clusters=3, **params):
    return URRL(n_clusters, **flat(**{**SMALL, "random_state": 0, **params}))


def tiny(n_clusters=3, **params):
    """What hardly learns anything."""
    short = {"embedding_dim": 8, "hidden_dim": 8, "pretrain_epochs": 1, "joint_epochs": 0, "scaling": "standard"}
    return URRL(n_clusters, **flat(**{**short, "random_state": 0, **params}))


@pytest.fixture(scope="module")
def data():
    return make_blobs(90, 3)


@pytest.fixture(scope="module")
def fitted(data):
    return small().fit(data[0])


@pytest.fixture(scope="module")
def few():
    return make_blobs(36, 3, widths=(5, 4))


@pytest.fixture(scope="module")
def brief(few):
    return tiny(joint_epochs=1).fit(few[0])


@pytest.mark.slow
def test_groups_are_found(data, fitted):
    assert metrics.clustering_accuracy(data[1], fitted.labels_) >= 0.97


def test_fitted_attributes_agree_with_each_other(data, fitted):
    n = len(data[1])
    assert fitted.embedding_.shape == (n, 32)
    assert fitted.soft_labels_.shape == (n, 3)
    assert fitted.soft_labels_.sum(axis=1) == pytest.approx(np.ones(n), abs=1e-5)
    assert (fitted.soft_labels_.argmax(axis=1) == fitted.labels_).all()
    assert fitted.cluster_centers_.shape == (3, 32)
    assert len(fitted.history_["epoch"]) == 12


def test_training_samples_are_placed_as_in_training_to_the_bit(data, fitted):
    views = data[0]
    assert np.array_equal(fitted.transform(views), fitted.embedding_)
    assert np.array_equal(fitted.predict_proba(views), fitted.soft_labels_)
    assert np.array_equal(fitted.predict([view[40:50] for view in views]), fitted.labels_[40:50])


@pytest.mark.slow
def test_equal_training_samples_are_placed_as_in_training():
    rng = np.random.default_rng(0)
    kinds = np.eye(3)[rng.integers(3, size=40)]
    other = rng.normal(size=(40, 2))
    other[::2] = np.nan
    model = tiny().fit([kinds, other])
    assert np.array_equal(model.transform([kinds, other]), model.embedding_)
    reversed_rows = Views([kinds, other])[::-1]
    assert np.array_equal(model.transform(reversed_rows), model.embedding_[::-1])
    assert tiny(scaling="none").fit(reversed_rows).labels_.shape == (40,)


def test_names_that_cannot_be_used_are_refused_before_the_work():
    frame = pd.DataFrame(np.eye(12)[:, :3], columns=["a", 1, "b"])
    model = small(pretrain_epochs=10**6)
    with pytest.raises(DataError, match="names of the columns cannot be used"):
        model.fit(frame)


def test_the_global_dtype_does_not_matter(few):
    torch.set_default_dtype(torch.float64)
    try:
        assert tiny(joint_epochs=1).fit(few[0]).embedding_.dtype == np.float32
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kept", [(1,), (0, 2)])
def test_new_samples_with_any_subset_of_views(fitted, kept):
    views, labels, _ = make_blobs(90, 3, missing=0.0)  # the same groups, all views known
    new = [view + 0.01 if v in kept else None for v, view in enumerate(views)]
    assert metrics.clustering_accuracy(labels, fitted.predict(new)) >= 0.85
    named = {f"view_{v}": view + 0.01 for v, view in enumerate(views) if v in kept}
    assert np.array_equal(fitted.predict(named), fitted.predict(new))
    assert np.array_equal(fitted.predict(dict(reversed(named.items()))), fitted.predict(new))


def test_same_seed_same_labels_to_the_bit(few, brief):
    again, other = (clone(brief).set_params(random_state=seed).fit(few[0]) for seed in (0, 4))
    assert np.array_equal(brief.embedding_, again.embedding_)
    assert np.array_equal(brief.labels_, again.labels_)
    assert not np.array_equal(brief.embedding_, other.embedding_)


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")  # one epoch from a random seed
def test_global_random_state_and_input_are_untouched(few):
    views = [view.copy() for view in few[0]]
    for view in views:
        view.flags.writeable = False
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    tiny(random_state=None, joint_epochs=1).fit(views).predict(views)
    assert torch.equal(before[0], torch.random.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(views, few[0], strict=True))


def test_hidden_values_reach_nothing(few, brief):
    views, _, mask = few
    junk = [np.where(mask[:, v, None], view, 1e6) for v, view in enumerate(views)]
    assert np.array_equal(brief.embedding_, clone(brief).fit(Views(junk, mask=mask)).embedding_)


def test_impute_fills_missing_places_only(data, fitted):
    views, _, mask = data
    valid = fitted.impute(views)
    truth = make_blobs(90, 3, missing=0.0)[0]
    for v, view in enumerate(valid):
        assert np.array_equal(view[mask[:, v]], views[v][mask[:, v]])
        error = np.abs(view - truth[v])[~mask[:, v]].mean()
        mean_guess = np.abs(np.nanmean(views[v], axis=0) - truth[v])[~mask[:, v]].mean()
        assert error < 0.7 * mean_guess
    named = fitted.impute({"view_1": views[1][:0:-1][mask[:0:-1, 1]]})
    assert list(named) == ["view_0", "view_1", "view_2"]
    whole = fitted.impute(Views(views))
    assert whole.mask.all()
    assert np.array_equal(whole.arrays[2], valid[2])


@pytest.fixture(scope="module")
def alone():
    """One table, and a model of it."""
    table = make_blobs(40, 2, widths=(4,), missing=0.0)[0][0]
    return table, tiny(2).fit({"rna": table})


def test_impute_of_one_table_gives_one_table(alone):
    table, model = alone
    assert np.array_equal(model.impute(table), table)


@pytest.mark.parametrize(
    ("n", "params"),
    [
        (12, {"n_neighbors": 30}),
        (5, {"n_clusters": 5, "batch_size": 64}),
        (1, {"n_clusters": 1}),
        pytest.param(30, {"n_clusters": 1}, marks=pytest.mark.slow),
        pytest.param(30, {"joint_epochs": 0}, marks=pytest.mark.slow),
        pytest.param(30, {"pretrain_epochs": 0, "joint_epochs": 0}, marks=pytest.mark.slow),
        pytest.param(30, {"n_neighbors": 1}, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
def test_edge_sizes(n, params):
    views = make_blobs(n, 3, missing=0.4)[0]
    if any(np.isnan(view).all() for view in views):
        views = make_blobs(n, 3, missing=0.0)[0]
    model = tiny(**{"joint_epochs": 1, **params}).fit(views)
    assert np.isfinite(model.embedding_).all()
    assert set(model.labels_) <= set(range(model.n_clusters))


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
def test_duplicate_rows_and_constant_columns():
    table = np.ones((20, 3))
    table[10:, 0] = 2.0
    with pytest.warns(SuspiciousDataWarning, match="view_1: no column of this view ever changes"):
        model = tiny(4, joint_epochs=1).fit([table, np.zeros((20, 2))])
    assert np.isfinite(model.embedding_).all()


def test_views_that_never_meet_have_no_donors():
    views = make_blobs(20, 2, widths=(3, 4), missing=0.0)[0]
    views[0][::2] = np.nan
    views[1][1::2] = np.nan
    with pytest.warns(SuspiciousDataWarning, match="no sample has this view and another one"):
        model = tiny(2, joint_epochs=1).fit(views)
    assert np.isfinite(model.embedding_).all()
    assert all(np.isfinite(view).all() for view in model.impute(views))


def test_empty_clusters_are_counted_and_warned_of():
    with pytest.warns(EmptyClusterWarning, match=r"\d+ of 6 clusters are empty"):
        tiny(6).fit(np.repeat([[0.0, 1.0], [1.0, 0.0]], 10, axis=0))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"n_clusters": 91}, DataError, "90 samples are fewer than n_clusters=91"),
        ({"scaling": "robust"}, SettingError, "scaling must be one of"),
        ({"device": "warp"}, SettingError, "device 'warp' cannot be used here"),
        ({"random_state": -1}, SettingError, "random_state must be"),
        ({"random_state": "x"}, SettingError, "random_state must be"),
        ({"config": {"noise": 0}}, SettingError, r"config must be None or a Config, such as .*; got \{'noise': 0\}$"),
        ({"config": Config(n_clusters=4)}, SettingError, "give n_clusters=4 to URRL itself, and not to its Config"),
        ({"config": Config(4, effort="quick")}, SettingError, "give n_clusters=4 and effort='quick' to URRL itself"),
        ({"device": "meta"}, SettingError, "only cpu and cuda are supported"),
    ],
)
def test_wrong_parameters_are_refused_in_one_sentence(data, change, error, words):
    model = small().set_params(**change)
    with pytest.raises(error, match=words):
        model.fit(data[0])
    assert not hasattr(model, "labels_")


def test_a_view_that_nobody_has_cannot_be_fitted(data):
    with pytest.raises(DataError, match="view 'view_1' is missing in every row"):
        small().fit([data[0][0][data[2][:, 0]], None])


def test_prediction_input_must_fit_the_model(data, fitted):
    views = [np.nan_to_num(view) for view in data[0]]
    with pytest.raises(DataError, match="2 views were given, but the model was fitted on 3"):
        fitted.predict(views[:2])
    with pytest.raises(DataError, match=r"views \['rna'\] are unknown"):
        fitted.predict({"rna": views[0]})
    with pytest.raises(DataError, match="view 'view_1' has 5 columns, but the model was fitted on 8"):
        fitted.predict([views[0], views[0], views[2]])
    with pytest.raises(DataError, match="1 view was given, but the model was fitted on 3"):
        fitted.predict(views[0])


def test_values_far_from_all_known_ones_are_refused(few):
    fitted = tiny(scaling="minmax").fit(few[0])
    strange = np.nan_to_num(few[0][0][:2]).astype(np.float64)
    strange[1] = 3e38  # so that sums overflow, whatever the weights are
    with pytest.raises(DataError, match="row 1: its values are too far from those that the model was fitted on"):
        fitted.predict({"view_0": strange})


@pytest.mark.parametrize("value", [1e6, -1e9, 1e15])
def test_rows_far_out_are_flagged(data, fitted, value):
    strange = np.nan_to_num(data[0][0][:3]).astype(np.float64)
    strange[1, 0] = value
    with pytest.warns(OutOfRangeWarning, match="1 of 3 samples, such as 1, have values far outside"):
        fitted.predict({"view_0": strange})
    assert fitted.out_of_range({"view_0": strange}).tolist() == [False, True, False]
    assert not fitted.out_of_range(data[0]).any()


def test_a_hidden_view_is_never_far_out(data, fitted):
    strange = Views([np.nan_to_num(view) + 1e9 for view in data[0]], mask=np.array([[False, True, True]] * 90))
    assert fitted.out_of_range(strange).all()
    strange = strange.replace(arrays=(strange.arrays[0], *(np.nan_to_num(view) for view in data[0][1:])))
    assert not fitted.out_of_range(strange).any()


def test_a_little_beyond_the_training_samples_is_not_far_out(data, fitted):
    view = np.nan_to_num(data[0][0])
    low, high = np.nanmin(data[0][0], axis=0), np.nanmax(data[0][0], axis=0)
    assert not fitted.out_of_range({"view_0": view + 9 * (high - low)}).any()
    assert fitted.out_of_range({"view_0": view + 12 * (high - low)}).all()


def test_predict_leaves_the_model_as_it_is(data, fitted):
    before = fitted._model
    fitted.predict(data[0])
    fitted.explain(data[0])
    assert fitted._model is before


def test_no_rows_are_refused(data, fitted):
    with pytest.raises(DataError, match="no rows"):
        fitted.predict(Views(data[0])[np.zeros(90, dtype=bool)])


def test_a_view_given_as_y_is_refused(data):
    with pytest.raises(DataError, match=r"pass all views together: fit\(\[first, second\]\)"):
        small().fit(data[0][0], data[0][1])


def test_a_failed_refit_leaves_the_model_as_it_was(few):
    table = np.nan_to_num(few[0][0], nan=0.5)
    model = tiny().fit(table)
    with pytest.raises(DataError):
        model.fit(few[0][1])
    assert np.array_equal(model.predict(table), model.labels_)


def test_the_model_does_not_change_with_the_callers_arrays(few):
    views = [np.nan_to_num(view, nan=0.5) for view in few[0]]
    model = tiny(scaling="none").fit(views)
    probe = [view[:3] + 0.1 for view in views]
    before = model.predict_proba(probe)
    for view in views:
        view[:] = 0
    assert np.array_equal(before, model.predict_proba(probe))


def test_labels_say_whose_they_are(few):
    frames = [pd.DataFrame(np.nan_to_num(view, nan=0.5), index=[f"p{i}" for i in range(36)]) for view in few[0]]
    model = tiny().fit([frames[0], frames[1][::-1]])
    assert model.ids_.tolist() == [f"p{i}" for i in range(36)]


def test_ablation_switches_reach_the_network(few):
    model = tiny(joint_epochs=1, clustering_module=False, distance_code=False).fit(few[0])
    assert model.history_["stage"] == ["pre-training"]
    assert model._model.network.neighbor_encoders[0].block.query.in_features == 5


def test_clone_pickle_and_refit(few, brief):
    copy = pickle.loads(pickle.dumps(brief))
    assert np.array_equal(copy.predict(few[0]), brief.labels_)
    assert clone(brief).get_params() == brief.get_params()
    model = tiny(2).fit(pd.DataFrame({"a": range(9), "b": range(9)}))
    assert list(model.feature_names_in_) == ["a", "b"]
    model.fit(few[0])
    assert not hasattr(model, "feature_names_in_")
    assert model.n_features_in_ == 9


def test_pipeline_and_set_output(few):
    table = np.concatenate([np.nan_to_num(view) for view in few[0]], axis=1)
    pipeline = Pipeline([("scale", StandardScaler()), ("urrl", tiny())])
    framed = pipeline.set_output(transform="pandas").fit_transform(table)
    assert list(framed.columns[:2]) == ["urrl0", "urrl1"]
    assert pipeline.predict(table).shape == (36,)


@pytest.mark.slow
def test_pipeline_grid_search_and_set_output_on_views(few):
    views = Views(dict(zip("ab", few[0], strict=True)))
    pipeline = Pipeline([("same", FunctionTransformer()), ("urrl", tiny())])
    framed = clone(pipeline["urrl"]).set_output(transform="pandas").fit_transform(views)
    assert framed.shape == (36, 8)

    def silhouette(model, held_out, y=None):
        return silhouette_score(model.transform(held_out), model.predict(held_out))

    search = GridSearchCV(pipeline, {"urrl__n_clusters": [3]}, scoring=silhouette, cv=2, error_score="raise").fit(views)
    assert search.best_params_ == {"urrl__n_clusters": 3}
    assert search.predict(views).shape == (36,)


@pytest.mark.slow
def test_progress_is_shown_on_request(few, capsys):
    tiny(joint_epochs=1, verbose=True).fit(few[0])
    shown = capsys.readouterr()
    assert re.search(r"^joint training: 1 epochs in \d+ s$", shown.err, re.M)  # no terminal, so a line per stage
    assert "loss=" not in shown.err
    assert not shown.out
    tiny(joint_epochs=1).fit(few[0])
    assert not capsys.readouterr().err


def test_every_kind_of_random_state():
    for seed in (np.random.RandomState(3), np.random.default_rng(3)):
        assert len(set(replicate_seeds(seed, 4))) == 4
    assert replicate_seeds(np.int64(3), 4) == replicate_seeds(3, 4)
    table = np.arange(24.0).reshape(12, 2)
    assert tiny(pretrain_epochs=0, random_state=np.random.default_rng(3)).fit(table).labels_.shape == (12,)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same_groups_and_its_model_moves_to_the_cpu(data):
    model = small(device="cuda").fit(data[0])
    assert metrics.clustering_accuracy(data[1], model.labels_) >= 0.97
    on_cpu = pickle.loads(pickle.dumps(model)).set_params(device="cpu")
    assert np.abs(on_cpu.transform(data[0]) - model.embedding_).max() < 1e-2
    assert (on_cpu.predict(data[0]) == model.labels_).mean() >= 0.99
    twice = small(device="cuda").fit(data[0])
    assert (twice.labels_ == model.labels_).mean() >= 0.99


@pytest.mark.slow
def test_one_of_several_trainings_is_kept(few):
    model = tiny(joint_epochs=1, n_init=3, scaling="minmax").fit(few[0])
    assert len(model.objectives_) == 3
    assert model.history_["total"][-1] in model.objectives_
    alone = tiny(joint_epochs=1, scaling="minmax").fit(few[0])
    assert alone.objectives_ == [alone.history_["total"][-1]]  # once unless asked
    assert model.objectives_[0] == alone.objectives_[0]  # the first has the seed itself
    assert len(set(model.objectives_)) == 3
    assert (model.predict(few[0]) == model.labels_).all()


@pytest.mark.parametrize("n_init", [0, -1, 1.5, True, "3", None])
def test_nonsense_for_n_init_is_refused(data, n_init):
    with pytest.raises(SettingError, match="n_init must be 'auto' or an integer of at least 1"):
        small(n_init=n_init).fit(data[0])


def test_the_only_view_needs_no_name_in_new_samples(alone):
    table, model = alone
    completed, _ = model.complete(table[:5])
    assert (completed.names, completed.arrays[0].tolist()) == (("rna",), table[:5].tolist())
    with pytest.raises(ValueError, match="X has 3 features, but URRL is expecting 4 features"):
        model.complete(table[:5, :3])
