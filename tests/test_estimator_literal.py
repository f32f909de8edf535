"""What an estimator hands on, keeps and gives back: by hand, sample by sample."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch

from flat import flat
from viewfuse import URRL, OutOfRangeWarning, Views
from viewfuse.data.side_information.knowledge import NOTHING
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.methods import fitted_estimator
from viewfuse.methods.urrl import estimator
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.fit import Fitted
from viewfuse.selection.decisions import ClusterNumber

SMALL = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 16, "n_heads": 2}
BRIEF = {**SMALL, "pretrain_epochs": 1, "joint_epochs": 0, "scaling": "standard", "random_state": 7}


class Stop(Exception):
    """What is handed on is known."""


def tables(n=40):
    """Samples with names, two views of different units and columns, some of them missing."""
    rng = np.random.default_rng(0)
    names, groups = [f"s{i}" for i in range(n)], 4.0 * (np.arange(n) % 3)[:, None]
    first = pd.DataFrame(rng.normal(size=(n, 3)) + groups, index=names, columns=list("abc"))
    second = pd.DataFrame(900 * (rng.normal(size=(n, 2)) - groups) + 5e4, index=names, columns=list("de"))
    first.iloc[::5] = np.nan
    second.iloc[1::5] = np.nan
    return {"first": first, "second": second}


@pytest.fixture(scope="module")
def model():
    return URRL(3, **flat(**BRIEF)).fit(tables())


def handed_on(monkeypatch, chosen=None, **params):
    """The arguments of the choice of k and of the fit."""
    seen = {}

    def choose(*args, **ways):
        seen["choice"] = (*args, ways)
        return replace(NUMBER, chosen=chosen), "begun"

    def fit(*args, **ways):
        seen["fit"] = (*args, ways)
        raise Stop

    monkeypatch.setattr(estimator, "choose_n_clusters", choose)
    monkeypatch.setattr(estimator, "fit_models", fit)
    monkeypatch.setattr(estimator, "threads_for", lambda count, n: 10 * count + n)
    with pytest.raises(Stop):
        URRL(**flat(**{**SMALL, **params}), random_state=7, device="cpu").fit(tables())
    return seen


NUMBER = ClusterNumber(1, {}, "few", [], "", [])
FURTHER = [int(seed) for seed in np.random.SeedSequence([7, 2**32]).generate_state(3)[1:]]


@pytest.mark.parametrize(
    ("params", "seeds"),
    [({}, [7]), ({"n_init": 2}, [7, FURTHER[0]]), ({"effort": "thorough"}, [7, *FURTHER])],
)
def test_a_fit_hands_on_what_it_was_asked_for(monkeypatch, params, seeds):
    asked = {"fill": "median", "reduction": "none", "scaling": "view", "n_clusters": 4, **params}
    seen = handed_on(monkeypatch, **asked)
    assert list(seen) == ["fit"]
    (source,), config, scaling, given, device, ways = seen["fit"]
    assert source.reduced.ids.tolist() == [f"s{i}" for i in range(40)]
    assert config == Config(4, embedding_dim=8, hidden_dim=8, batch_size=16, n_heads=2,
                            effort=params.get("effort", "auto"))  # fmt: skip
    assert (scaling, given, device) == ("view", [seeds], torch.device("cpu"))
    assert (source.filler.how, ways["begun"]) == ("median", None)
    assert list(source.decisions[1].asked) == ["first", "second"]
    assert ways["threads"] == 10 * len(seeds) + 40
    assert ways["checkpoint"] is None


@pytest.mark.parametrize(("n", "inside"), [(999, 1), (1000, 2)])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_all_of_a_fit_of_few_samples_has_one_thread(monkeypatch, set_threads, n, inside, device):
    set_threads(2)
    seen = []

    def stop(self, views, config):
        seen.append(torch.get_num_threads())
        raise Stop

    monkeypatch.setattr(estimator, "chosen_device", lambda name: torch.device(name))
    monkeypatch.setattr(URRL, "_source", stop)
    for ask in (URRL(3, device=device).fit, URRL(device=device).choose):
        with pytest.raises(Stop):
            ask([np.eye(n, 3), np.eye(n, 2)])
    assert seen == [inside] * 2
    assert torch.get_num_threads() == 2


def test_a_number_that_was_chosen_is_that_of_the_fit(monkeypatch):
    seen = handed_on(monkeypatch, chosen=6, cluster_range=(3, 9), n_init=2, fill="median")
    source, config, within, scaling, seed, device, ways = seen["choice"]
    assert (len(source.reduced), config.n_clusters, within, scaling, seed) == (40, 1, (3, 9), "auto", 7)
    assert (device, source.filler.how, ways["threads"]) == (torch.device("cpu"), "median", 60)
    assert seen["fit"][0] == [source]
    assert seen["fit"][1].n_clusters == 6
    assert seen["fit"][-1]["begun"] == "begun"


@pytest.mark.parametrize(
    ("known", "end", "wanted"), [(4, "smallest", "known"), (4, "", ""), (1, "smallest", "smallest")]
)
def test_a_number_that_hints_need_is_said_to_be_theirs(monkeypatch, known, end, wanted):
    made = []
    monkeypatch.setattr(
        estimator, "choose_n_clusters", lambda *args, **ways: (replace(NUMBER, chosen=4, end=end), None)
    )

    def with_number(decisions, number):
        made.append(number)
        raise Stop

    monkeypatch.setattr(estimator, "with_number", with_number)
    monkeypatch.setattr(estimator, "fit_models", lambda *args, **ways: [Fitted(None, None, {}, [], {})])
    hints = {f"s{i}": f"class {i}" for i in range(known)}
    with pytest.raises(Stop):
        URRL(cluster_range=(2, 9), random_state=7, device="cpu").fit(tables(), hints)
    assert made[0].end == wanted


def test_choose_looks_with_the_seed_itself(monkeypatch):
    seen = []
    monkeypatch.setattr(estimator, "choose_n_clusters", lambda *args, **ways: seen.append(args) or
                        (replace(NUMBER, chosen=1), None))  # fmt: skip
    found = URRL(random_state=7, cluster_range=(2, 5), scaling="minmax", effort="thorough").choose(tables())
    assert (
        found["why"] == "number of clusters: 1, no clusters were found, as there are too few samples to look for more"
    )
    assert seen[0][2:5] == ((2, 5), "minmax", 7)
    assert seen[0][1].effort == "thorough"


def test_a_checkpoint_is_that_of_data_and_settings_but_not_of_the_machine(monkeypatch, tmp_path):
    facts = []
    monkeypatch.setattr(estimator, "fit_facts", lambda views, own, device: facts.append(own) or own)
    monkeypatch.setattr(estimator, "Checkpoint", lambda path, own: Checkpoint(tmp_path / "new", {}))
    URRL(3, config=Config(noise=0.2), checkpoint=tmp_path, verbose=True, n_jobs=2)._checkpoint(
        Views(tables()), [4, 5], torch.device("cpu"), NOTHING
    )
    expected = asdict(Config(3, noise=0.2)) | URRL(3).get_params() | {"random_state": [4, 5]}
    of_the_machine = ("config", "device", "verbose", "checkpoint", "n_jobs", "outliers")
    assert facts == [{name: x for name, x in expected.items() if name not in of_the_machine}]


def test_a_thinned_model_keeps_each_sample_with_what_is_its_own(model, tmp_path):
    model.save(tmp_path / "model", keep=17)
    thin = URRL.load(tmp_path / "model")
    assert len(thin.ids_) == 17
    rows = [model.ids_.tolist().index(name) for name in thin.ids_]
    assert rows != [*range(17)]
    for name in ("labels_", "embedding_", "soft_labels_"):
        assert np.array_equal(getattr(thin, name), getattr(model, name)[rows], equal_nan=True), name
    for name in ("cluster_centers_",):
        assert np.array_equal(getattr(thin, name), getattr(model, name), equal_nan=True), name
    for v, view in enumerate(thin._model.stored.values):
        assert torch.equal(view, model._model.stored.values[v][rows])
    assert (thin.n_features_in_, thin.n_clusters_, thin.view_names_) == (5, 3, ["first", "second"])
    assert (thin.history_, thin.objectives_) == (model.history_, model.objectives_)


def test_missing_views_are_filled_and_observed_ones_stay(model):
    data = tables()
    found, rebuilt = model.impute(data), model._model.rebuild(model._model.place(Views(data))[1])
    for v, (name, table) in enumerate(data.items()):
        missing = table.isna().all(axis=1).to_numpy()
        np.testing.assert_array_equal(found[name][~missing], table.to_numpy(dtype=np.float32)[~missing])
        np.testing.assert_array_equal(found[name][missing], rebuilt[v][missing])
        low, high = table.min().to_numpy(), table.max().to_numpy()  # in the units of the data, and within their range
        assert (found[name] >= low - 1e-3 * np.abs(low)).all()
        assert (found[name] <= high + 1e-3 * np.abs(high)).all()


def test_samples_far_out_are_counted_and_one_is_named(model):
    data = tables()
    data["first"].iloc[[11, 17], 1] = 1e5
    with pytest.warns(OutOfRangeWarning, match="^2 of 40 samples, such as 's11', have values far"):
        model.predict(data)
    assert np.flatnonzero(model.out_of_range(data)).tolist() == [11, 17]


def test_frames_are_indexed_by_the_names_of_the_samples(model):
    data = {name: table.iloc[[9, 2, 33]] for name, table in tables().items()}
    found = copy.deepcopy(model).set_output(transform="pandas").transform(data)
    assert found.index.tolist() == ["s9", "s2", "s33"]
    np.testing.assert_allclose(found.to_numpy(), model.embedding_[[9, 2, 33]], atol=1e-5)
    assert isinstance(model.transform(data), np.ndarray)


def test_the_tree_of_an_explanation_has_the_sizes_of_all_clusters(model, monkeypatch):
    asked, own = [], fitted_estimator.merge_tree
    monkeypatch.setattr(
        fitted_estimator, "merge_tree", lambda centers, sizes: asked.append((centers, sizes)) or own(centers, sizes)
    )
    few = {name: table.iloc[:4] for name, table in tables().items()}
    model.explain(few)
    assert asked[0][0] is model.cluster_centers_
    assert asked[0][1].tolist() == [int((model.labels_ == c).sum()) for c in range(3)]


def test_what_fitting_gave_is_what_its_model_says(model):
    q = model._model.assign(model._model.stored, torch.from_numpy(model.embedding_))
    assert np.array_equal(model.soft_labels_, q)
    assert np.array_equal(model.labels_, q.argmax(axis=1))
    assert np.array_equal(model.cluster_centers_, model._model.network.centers.detach().numpy())
    assert (model.n_clusters_, model._n_features_out, model.n_features_in_) == (3, 8, 5)
    assert model.ids_.tolist() == [f"s{i}" for i in range(40)]
