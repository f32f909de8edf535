"""Explanations against slow literal versions, against planted facts, and from the command line."""

from __future__ import annotations

import csv
import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from conftest import make_blobs
from flat import flat
from test_neighbors import incomplete_data
from test_network import network_for
from training_tools import index_samples
from viewfuse import URRL, MissingPackage, SuspiciousDataWarning, ViewfuseError, Views
from viewfuse.cli import main
from viewfuse.data.filling import Filler
from viewfuse.data.scaling import Scaler
from viewfuse.fitted import clusters as effects
from viewfuse.fitted import explanation
from viewfuse.fitted.clusters import N_TYPICAL, typical_samples
from viewfuse.fitted.explanation import TOP, sheets
from viewfuse.fitted.model import Model
from viewfuse.io.writers import write_sheets
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.reduction.reduce import Reduction, no_front_end

TINY = {"embedding_dim": 16, "hidden_dim": 16, "batch_size": 32, "learning_rate": 2e-3, "random_state": 0}
NAMES = ("sound", "image", "touch")


def differences_of(views, labels, n_clusters, top=TOP):
    found = [effects.view_effects(views, v, labels, n_clusters) for v in range(len(views.names))]
    return tuple(effects.differences(found, n_clusters, top))


def tiny(n_clusters=3, **params):
    return URRL(n_clusters, **flat(**{"pretrain_epochs": 4, "joint_epochs": 2, **TINY, **params}))


def model_of(values, mask, wanted) -> Model:
    """A model in float64 that was never trained."""
    tensors, present = [torch.from_numpy(view).double() for view in values], torch.from_numpy(mask)
    stored, names = index_samples(tensors, present, wanted), tuple(f"view_{v}" for v in range(len(values)))
    columns = tuple(range(view.shape[1]) for view in values)
    reduction = Reduction(tuple(no_front_end(view.shape[1]) for view in values))
    scaler, network = Scaler("none", (), ()), network_for(values, wanted)
    return Model(
        names,
        columns,
        (0.0,) * len(names),
        URRLMethod(wanted),
        Filler("error"),
        reduction,
        scaler,
        stored,
        network,
        np.empty((len(mask), 0)),
    )


@pytest.fixture(scope="module")
def data():
    views, _, mask = make_blobs(80, 3)
    return Views(dict(zip(NAMES, views, strict=True)), ids=[f"s{i}" for i in range(80)]), mask


@pytest.fixture(scope="module")
def fitted(data):
    return tiny().fit(data[0])


@pytest.fixture(scope="module")
def explained(data, fitted):
    return fitted.explain(data[0])


@settings(max_examples=8)
@given(incomplete_data(max_rows=7), st.sampled_from([-0.5, -10.0, -np.inf]))
def test_weights_are_what_a_view_moves(values_and_mask, gamma):
    values, mask, _ = values_and_mask
    wanted = Config(n_neighbors=3, embedding_dim=8, hidden_dim=6, n_heads=2, imputed_bias=gamma)
    model = model_of(values, mask, wanted)
    found = explanation._weights(model, model.stored)
    for i in range(len(mask)):
        tokens, valid = reference.knn_imputation(values, mask, mask[i], i, 3, wanted.donor_depth)
        expected = reference.view_weights(model.network, tokens, valid, mask[i], gamma)
        assert found[i] == pytest.approx(expected, abs=1e-8)
        assert (found[i][~valid.any(axis=1)] == 0).all()


@pytest.mark.parametrize("choice", ["first", "third", "mean", "concat"])
def test_weights_sum_to_one_whatever_is_handed_on(choice):
    views, _, mask = make_blobs(40, 2)
    values = [np.nan_to_num(view) for view in views]
    wanted = Config(embedding_dim=8, hidden_dim=6, n_heads=2, view_output=choice, imputed_bias=-np.inf)
    model = model_of(values, mask, wanted)
    weights = explanation._weights(model, model.stored)
    assert (weights >= 0).all()
    assert weights.sum(axis=1) == pytest.approx(np.ones(40))
    # A view from donors that nobody attends to counts only where its own output is handed on.
    heard = {"first": [0], "third": [2]}.get(choice, [0, 1, 2])
    assert ((weights > 0) == (mask | np.isin(range(3), heard))).all()


@pytest.mark.slow
def test_a_view_without_content_has_no_weight():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(40, 3)), rng.normal(size=(40, 4))
    first[20:], second[:20] = np.nan, np.nan  # nobody has both, so nobody can stand in
    with pytest.warns(SuspiciousDataWarning, match="no sample has this view and another one"):
        model = tiny(2, pretrain_epochs=1, joint_epochs=0).fit([first, second])
    found = model.explain([first, second])
    assert np.array_equal(found.weights, np.repeat(np.eye(2), 20, axis=0))
    assert all(donors == () for donors in found.donors.ravel())


def test_an_embedding_that_nothing_moves_owes_all_views_the_same():
    views, _, mask = make_blobs(10, 2, missing=0.0)
    model = model_of(views, mask, Config(embedding_dim=8, hidden_dim=6, n_heads=2))
    torch.nn.init.zeros_(model.network.view_encoder.block.norm_feedforward.weight)
    assert explanation._weights(model, model.stored) == pytest.approx(np.full((10, 3), 1 / 3))


def test_labels_and_chances_are_those_of_predict(data, fitted, explained):
    chances = fitted.predict_proba(data[0])
    order = np.argsort(-chances, axis=1)
    assert np.array_equal(explained.labels, fitted.labels_)
    assert np.array_equal(explained.confidence, chances.max(axis=1))
    assert np.array_equal(explained.second_labels, order[:, 1])
    assert np.array_equal(explained.second_confidence, np.sort(chances, axis=1)[:, 1])


def test_company_changes_nothing_about_a_sample(data, fitted, explained):
    alone = fitted.explain(data[0][[70]])
    assert np.array_equal(alone.weights[0], explained.weights[70])
    assert alone.donors[0].tolist() == explained.donors[70].tolist()


def test_donors_are_those_of_the_lists(data, fitted, explained):
    stored, mask = fitted._model.stored, data[1]
    members = fitted._model.method.members(stored, stored)
    for i, v in np.ndindex(mask.shape):
        expected = [] if mask[i, v] else [f"s{j}" for j in members[i, v].tolist() if j != NO_NEIGHBOR]
        assert list(explained.donors[i, v]) == expected
        assert all(data[1][int(donor[1:]), v] for donor in expected)
    assert sum(len(donors) for donors in explained.donors.ravel()) > 100


def test_new_samples_have_donors_from_training(data, fitted):
    found = fitted.explain({"image": np.random.default_rng(5).normal(size=(4, 8))})
    assert found.ids.tolist() == [0, 1, 2, 3]
    for sound, image, touch in found.donors:
        assert image == ()
        assert 0 < len(sound) <= 4
        assert set(sound) <= set(data[0].ids[data[1][:, 0]])
        assert set(touch) <= set(data[0].ids[data[1][:, 2]])


def test_typical_samples_are_the_surest(data, fitted, explained):
    for c in range(3):
        members = [i for i in range(80) if explained.labels[i] == c]
        members.sort(key=lambda i: (-float(f"{fitted.soft_labels_[i, c]:.4f}"), i))
        assert explained.typical[c] == tuple(f"s{i}" for i in members[:N_TYPICAL])
        assert explained.sizes[c] == len(members)


def test_of_equally_sure_samples_the_first_are_typical():
    inside, sure = np.ones(500, dtype=bool), np.full(500, 0.5, dtype=np.float32)
    inside[1], sure[1], sure[400] = False, 0.9, 0.8
    assert typical_samples(np.flatnonzero(inside), sure).tolist() == [400, 0, 2, 3, 4]


@given(st.lists(st.integers(0, 40).map(lambda k: 0.5 + k * 3e-6), min_size=2, max_size=8))
def test_files_which_round_have_the_same_typical_samples(sure):
    """A page is made from files, an explanation from the model; both name the same samples in the same order."""
    rows, confidence = np.arange(len(sure)), np.array(sure, dtype=np.float32)
    in_files = np.array([float(f"{one:.4f}") for one in confidence])
    literal = sorted(rows.tolist(), key=lambda row: (-in_files[row], row))[:N_TYPICAL]
    assert typical_samples(rows, confidence).tolist() == typical_samples(rows, in_files).tolist() == literal


@pytest.mark.parametrize("chunk", [1, 50, 4_000_000])
def test_differences_are_plain_means(data, monkeypatch, chunk):
    views, mask = data
    monkeypatch.setattr(effects, "_CELLS_PER_CHUNK", chunk)
    labels = np.arange(80) % 4
    labels[labels == 3] = 4  # cluster 3 is empty
    found = differences_of(views, labels, 5)
    assert [(row.label, row.view) for row in found[::TOP]][:2] == [(0, "sound"), (0, "image")]
    assert {row.label for row in found} == {0, 1, 2, 4}
    for v, name in enumerate(NAMES):
        rows, kinds = views.arrays[v][mask[:, v]].astype(float), labels[mask[:, v]]
        for c in (0, 1, 2, 4):
            inside, outside = rows[kinds == c].mean(axis=0), rows[kinds != c].mean(axis=0)
            scores = (inside - outside) / rows.std(axis=0)
            order = sorted(range(len(scores)), key=lambda j: -abs(scores[j]))[:TOP]
            mine = [row for row in found if (row.label, row.view) == (c, name)]
            assert [row.feature for row in mine] == order
            assert [row.difference for row in mine] == pytest.approx(scores[order])
            assert [row.mean for row in mine] == pytest.approx(inside[order])
            assert [row.mean_of_others for row in mine] == pytest.approx(outside[order])


def test_a_planted_feature_is_found_in_the_units_of_the_data():
    rng = np.random.default_rng(0)
    genes = pd.DataFrame(rng.normal(size=(80, 30)), columns=[f"g{j}" for j in range(30)])
    kinds = np.arange(80) % 2
    genes["g17"] = 50_000.0 + 10.0 * kinds + rng.normal(size=80)
    genes["g3"] = 0.1  # constant, with a mean that rounding can spoil
    genes.iloc[70:] = np.nan
    found = differences_of(Views({"rna": genes, "other": rng.normal(size=(80, 2))}), kinds, 2)
    best = [next(row for row in found if row.label == c) for c in (0, 1)]
    assert [(row.view, row.feature) for row in best] == [("rna", "g17")] * 2
    assert best[0].difference == pytest.approx(-2.0, abs=0.1)
    assert (best[1].mean, best[1].mean_of_others) == pytest.approx((50_010.0, 50_000.0), abs=0.5)
    only_constant = Views({"flat": np.full((80, 2), 0.1)})
    assert differences_of(only_constant, kinds, 2) == ()


def test_all_features_have_an_effect_and_those_that_never_change_come_last():
    rng, kinds = np.random.default_rng(0), np.arange(40) % 2
    table = rng.normal(size=(40, 9))
    table[:, 2], table[:, 5] = 7.0, kinds + 0.1 * rng.normal(size=40)
    every, some = (differences_of(Views({"a": table}), kinds, 2, top) for top in (None, 3))
    for label in (0, 1):
        own = [row for row in every if row.label == label]
        assert sorted(row.feature for row in own) == list(range(9))
        assert own[0].feature == 5
        assert own[-1][2:] == (2, 0.0, 7.0, 7.0)
        sizes = [abs(row.difference) for row in own]
        assert sizes == sorted(sizes, reverse=True)
        assert [row for row in some if row.label == label] == own[:3]


def test_a_cluster_without_rows_in_a_view_gives_nothing_there():
    one, two = np.random.default_rng(0).normal(size=(2, 9, 2))
    one[6:] = np.nan
    found = differences_of(Views([one, two]), np.repeat([0, 1, 2], 3), 3)
    assert {(row.label, row.view) for row in found} == {
        (0, "view_0"), (0, "view_1"), (1, "view_0"), (1, "view_1"), (2, "view_1"),
    }  # fmt: skip
    assert differences_of(Views([one, two]), np.zeros(9, dtype=int), 2) == ()  # there are no others


def test_one_cluster_has_no_second_best(data):
    explained = tiny(1, pretrain_epochs=1, joint_epochs=0).fit(data[0]).explain(data[0])
    assert set(explained.second_labels) == {-1}
    assert set(explained.second_confidence) == {0.0}
    assert explained.sizes.tolist() == [80]
    assert explained.features().empty


def test_data_frames(data, explained):
    samples, clusters, features = explained.samples(), explained.clusters(), explained.features()
    assert list(samples.columns) == [
        "id", "label", "confidence", "second_label", "second_confidence",
        "weight_sound", "weight_image", "weight_touch", "donors_sound", "donors_image", "donors_touch",
    ]  # fmt: skip
    assert samples["id"].tolist() == data[0].ids.tolist()
    assert np.array_equal(samples[[f"weight_{name}" for name in NAMES]].to_numpy(np.float32), explained.weights)
    assert ((samples["donors_image"] == "") == data[1][:, 1]).all()
    lacking = int(np.flatnonzero(~data[1][:, 1])[0])
    assert samples["donors_image"][lacking].split() == list(explained.donors[lacking, 1])
    assert clusters["size"].sum() == 80
    assert clusters["typical"][1].split() == list(explained.typical[1])
    assert list(features.columns) == ["label", "view", "feature", "difference", "mean", "mean_of_others"]
    assert len(features) == 3 * (TOP + TOP + 3)
    assert len(explained.features(top=2)) == 3 * 6
    assert len(explained.features(top=None)) == 3 * (5 + 8 + 3)
    assert repr(explained).startswith("Explanation(80 samples, 3 clusters; mean weights: sound 0.")


def test_without_pandas_frames_say_so_and_files_are_written(explained, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match="pip install pandas"):
        explained.samples()
    assert issubclass(MissingPackage, ViewfuseError)
    assert len(sheets(explained)["samples.csv"].rows) == 80
    write_sheets(tmp_path, sheets(explained))
    assert {path.name for path in tmp_path.iterdir()} == {
        "samples.csv", "clusters.csv", "merges.csv", "features.csv", "effects.csv",
    }  # fmt: skip


def test_formulas_stay_text_in_the_files(tmp_path):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["=cmd(1)", "=cmd(2)"])
    views = Views({"a": frame}, ids=[f"=cmd{i}" for i in range(20)])
    write_sheets(tmp_path, sheets(tiny(2, pretrain_epochs=1, joint_epochs=0).fit(views).explain(views)))
    for name, column in {"samples.csv": 0, "clusters.csv": 2, "features.csv": 2, "effects.csv": 2}.items():
        rows = list(csv.reader((tmp_path / name).read_text().splitlines()))[1:]
        assert rows
        assert all(row[column].startswith("'=cmd") for row in rows)


def run(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_from_files_to_explanations(data, fitted, explained, tmp_path):
    views, mask = data
    fitted.save(tmp_path / "model")
    files = [tmp_path / f"{name}.csv" for name in NAMES]
    for v, path in enumerate(files):
        pd.DataFrame(views.arrays[v][mask[:, v]], index=views.ids[mask[:, v]]).to_csv(path, index_label="id")
    out = tmp_path / "why"
    shown = run("explain", tmp_path / "model", *files, "--out", out)
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert lines[0].split() == [
        "label",
        "size",
        "found",
        "again",
        "typical",
        "samples",
        "most",
        "distinguishing",
        "feature",
    ]
    assert len(lines) == 8
    for c in range(3):
        assert lines[1 + c].split()[:2] == [str(c), str(explained.sizes[c])]
        assert "deviations" in lines[1 + c]
    written = pd.read_csv(out / "samples.csv", index_col="id").loc[views.ids]
    assert written["label"].tolist() == explained.labels.tolist()
    assert written[[f"weight_{name}" for name in NAMES]].to_numpy() == pytest.approx(explained.weights, abs=1e-4)
    clusters, merges = pd.read_csv(out / "clusters.csv"), pd.read_csv(out / "merges.csv")
    assert clusters["stability"].tolist() == pytest.approx(fitted._again().tolist(), abs=1e-4)
    assert f"{clusters['again'][0]}, {clusters['stability'][0]:.2f}" in lines[1]
    assert merges["left"].tolist() == [2, 1]
    assert lines[5].startswith(f"for fewer clusters, join {merges['first'][0]} and {merges['second'][0]}, then ")
    assert len(pd.read_csv(out / "features.csv")) == len(explained.differences)
    assert len(pd.read_csv(out / "effects.csv")) == 3 * sum(views.widths)
    best = max(explained.differences, key=lambda row: (row.label == 0, abs(row.difference)))
    assert f"{best.view} {best.feature}: {best.mean:.4g}, others" in lines[1]

    again = run("explain", tmp_path / "model", *files, "--out", out)
    assert again.exit_code == 2
    assert again.output.strip() == f"viewfuse: {out} exists already; give another --out, or --force to overwrite it"
    forced = run("explain", tmp_path / "model", files[1], "--out", out, "--force", "--json")
    facts = json.loads(forced.output)
    assert facts["samples"] == mask[:, 1].sum() == sum(cluster["size"] for cluster in facts["clusters"])
    assert all(cluster["features"][0]["view"] == "image" for cluster in facts["clusters"] if cluster["size"])

    more = run("explain", tmp_path / "model", *files, "--out", out, "--force", "--top", 4).output.splitlines()
    assert len(more) == 5 + 3 * 4
    assert more[1] == lines[1]
    assert not more[2].startswith(("0", "1"))

    mistake = run("explain", tmp_path / "model", tmp_path / "nothing.csv", "--out", tmp_path / "o")
    assert mistake.exit_code == 2
    assert len(mistake.output.strip().splitlines()) == 1
    assert "nothing.csv is no file" in mistake.output
    assert not (tmp_path / "o").exists()


def test_a_last_cluster_without_samples_has_the_size_0(data, fitted):
    rows = np.flatnonzero(fitted.labels_ < 2)
    found = fitted.explain(data[0][rows])
    assert found.sizes.tolist() == [*np.bincount(fitted.labels_[rows], minlength=2).tolist(), 0]
