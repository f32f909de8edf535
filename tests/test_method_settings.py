"""Parameters of published methods: numbers of numpy count as what they are, and what cannot be is refused."""

from __future__ import annotations

import warnings
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest
import torch

import viewfuse
from conftest import make_blobs
from test_methods import BRIEF, PLACING, brief
from viewfuse import BadModelFile, CannotWrite, NotEnoughMemory, SettingError
from viewfuse.methods import COMPLETER, NEMO, SURE, MeanKMeans

pytestmark = pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(45, 3, widths=(5, 4))[0]


FEW = ("dcp", "sure", "dsimvc", "kmeans-knn", "nemo", "pimvc")
"""Others have no kind of parameter that these lack."""


def as_numpy(value):
    """The narrowest number of numpy that holds it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return list(map(np.int16, value)) if isinstance(value, tuple) else value
    return np.min_scalar_type(value).type(value) if isinstance(value, int) else np.float32(value)


@pytest.mark.parametrize("name", [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in BRIEF])
def test_numbers_of_numpy_are_numbers(name, blobs, tmp_path):
    """They give what plain ones give, also in a saved model, and stay the objects that were given."""
    plain, odd = (brief(name, n_neighbors=3) if name == "pimvc" else brief(name) for _ in range(2))
    usual = {one.name: getattr(plain, one.name) for one in fields(plain) if one.name != "random_state"}
    given = {one: as_numpy(value) for one, value in usual.items()}
    odd.set_params(**given)
    plain.set_params(**{k: float(np.float32(v)) for k, v in usual.items() if isinstance(v, float)})
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # what overflows
        np.testing.assert_array_equal(odd.fit(blobs).labels_, plain.fit(blobs).labels_)
    assert [one for one in given if getattr(odd, one) is not given[one]] == []
    if name in PLACING:
        odd.save(tmp_path / "model")
        assert viewfuse.load(tmp_path / "model", device="cpu").n_clusters == 3


def test_widths_of_any_sequence_can_be_saved(blobs, tmp_path):
    brief("sure", hidden_dims=range(8, 10)).fit(blobs).save(tmp_path / "model")
    assert viewfuse.load(tmp_path / "model").hidden_dims == (8, 9)


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("sure", {"latent_dim": 10**20}, "latent_dim must be at most 1,000,000,000"),
        ("sure", {"hidden_dims": (8, 10**20)}, "hidden_dims must be at most 1,000,000,000"),
        ("sure", {"hidden_dims": ""}, "hidden_dims must be a sequence of integers"),
        (
            "sure",
            {"learning_rate": 10**400},
            r"learning_rate must be .* and below 3e\+38; got 1000",
        ),
        ("recformer", {"graph_weight": 1e300}, r"graph_weight must be .* below 3e\+38; got 1e\+300"),
        ("sure", {"learning_rate": float("nan")}, "learning_rate must be a number of at least 0; got nan"),
        ("sure", {"dropout": 1}, "dropout must be a number of at least 0 and below 1; got 1"),
        ("pimvc", {"projection_weight": 0}, "projection_weight must be a number of at least 1e-12; got 0"),
    ],
)
def test_numbers_that_nothing_could_be_done_with_are_refused(blobs, name, wrong, said):
    with pytest.raises(SettingError, match=said):
        brief(name, **wrong).fit(blobs)


def test_fractions_are_numbers(blobs):
    found = [brief("sure", learning_rate=rate).fit(blobs).embedding_ for rate in (Fraction(1, 1000), 0.001)]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"latent_dim": 10**9}, "the network of SURE with its gradients needs .* bytes, but only"),
        ({"hidden_dims": (10**9, 10**9, 10**9)}, "the network of SURE|a network of these widths is too large"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused(blobs, wrong, said):
    with pytest.raises(NotEnoughMemory, match=said):
        brief("sure", **wrong).fit(blobs)


def test_pairs_that_do_not_fit_into_memory_are_refused(monkeypatch):
    """There are no more negative pairs of a sample than samples."""
    present = torch.ones(5, 2, dtype=torch.bool)
    assert SURE(2, n_negatives=10**9)._pairs(present, 0).shape == (5 + 25, 3)
    assert SURE(2, n_negatives=2)._pairs(present[:, :1], 0).shape == (5 + 10, 2)  # one view has no other to draw from
    monkeypatch.setattr("viewfuse.utils.memory.available", lambda: 1000)
    with pytest.raises(NotEnoughMemory, match=r"5 negative pairs of each sample needs .* choose a smaller n_negatives"):
        SURE(2, n_negatives=10**9)._pairs(present, 0)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("completer", {}),
        ("sure", {}),
        pytest.param("completer", {"prediction_start": 0}, marks=pytest.mark.slow),
        pytest.param("cpspan", {}, marks=pytest.mark.slow),
        pytest.param("recformer", {}, marks=pytest.mark.slow),
    ],
)
def test_a_learning_rate_of_zero_teaches_nothing(blobs, name, params):
    rates = [one.name for one in fields(brief(name)) if one.name.endswith("rate")]
    found = [
        brief(name, **{**params, **dict.fromkeys(rates, rate)}).fit(blobs).embedding_ for rate in (0.0, 1e-15, 1e-3)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
    assert np.abs(found[0] - found[2]).max() > 1e-4


@pytest.mark.filterwarnings("ignore::viewfuse.SuspiciousDataWarning", "ignore::viewfuse.OutOfRangeWarning")
def test_sure_places_samples_where_nobody_that_is_kept_has_a_view(tmp_path):
    rng = np.random.default_rng(0)
    views = [rng.normal(size=(30, 3)), rng.normal(size=(30, 4))]
    views[0][:15], views[1][15:] = np.nan, np.nan  # nobody has both
    model = brief("sure", 2).fit(views)
    model.save(tmp_path, keep=1)
    assert np.isfinite(viewfuse.load(tmp_path).transform(views)).all()


@pytest.mark.parametrize("seed", [2**32, 2**64 - 1])
def test_every_seed_is_one_for_kmeans(blobs, seed):
    assert len(MeanKMeans(3, random_state=seed).fit(blobs).labels_) == 45


def test_a_model_of_another_method_is_told_as_that(blobs, tmp_path):
    MeanKMeans(3, random_state=0).fit(blobs).save(tmp_path)
    for other, name in ((SURE, "sure"), (COMPLETER, "completer"), (viewfuse.URRL, "urrl")):
        with pytest.raises(BadModelFile, match=f"of .kmeans-mean., not of {name}; read it with viewfuse.load"):
            other.load(tmp_path)
    assert isinstance(viewfuse.load(tmp_path), MeanKMeans)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_no_folder_can_have_is_refused(blobs, name):
    model = MeanKMeans(3, random_state=0).fit(blobs)
    with pytest.raises(CannotWrite, match=r"cannot be written: .*; choose another folder"):
        model.save(name)


def test_methods_without_models_have_none_to_load(blobs, tmp_path, monkeypatch):
    MeanKMeans(3, random_state=0).fit(blobs).save(tmp_path)
    monkeypatch.setattr("viewfuse.methods.read_manifest", lambda path: {"method": {"name": "nemo", "config": {}}})
    assert "nemo" not in PLACING
    assert not hasattr(NEMO, "load")
    with pytest.raises(BadModelFile, match="its method 'nemo' is unknown"):
        viewfuse.load(tmp_path)
