"""Batches: their effects are taken out of the views, clusters do not follow them, and models know their batches."""

from __future__ import annotations

import warnings

import anndata
import mudata
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from flat import flat
from test_explanation import run
from viewfuse import URRL, Views, load, with_batch
from viewfuse.data.scaling import Scaler
from viewfuse.data.side_information.batch_labels import batch_added
from viewfuse.errors import DataError, SuspiciousDataWarning
from viewfuse.fitted import batch_effects as effects
from viewfuse.fitted import persistence
from viewfuse.fitted.batch_effects import batch_effects, beside, fit_batches, groups_of, mixture
from viewfuse.metrics import clustering_accuracy

SMALL = flat(embedding_dim=32, hidden_dim=64, pretrain_epochs=8, joint_epochs=2, scaling="standard")


def made(shares, seed=1):
    """Two views of 120 samples in three classes without batches, with a shift of three deviations, and the batches."""
    rng = np.random.default_rng(seed)
    known = rng.permutation(np.repeat([0, 1, 2], [50, 40, 30]))
    plain = [7 + 9 * (rng.normal(size=(120, width)) + 1.5 * rng.normal(size=(3, width))[known]) for width in (8, 12)]
    second = rng.random(120) < np.array(shares)[known]
    shifted = [view + second[:, None] * 3 * view.std(axis=0) * rng.choice([-1, 1], view.shape[1]) for view in plain]
    for views in (plain, shifted):
        views[0][::5] = np.nan
    return known, plain, shifted, np.where(second, "plate 2", "plate 1")


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.5), (0.2, 0.5, 0.8)], ids=["alike", "unequal"])
def test_a_shift_of_three_deviations_costs_nothing(shares):
    known, plain, shifted, batch = made(shares)
    scores = [
        clustering_accuracy(known, URRL(3, **flat(**SMALL), random_state=0).fit(views, batch=own).labels_)
        for views, own in ((plain, None), (shifted, None), (shifted, batch))
    ]
    assert scores[1] < 0.9 * scores[0]
    assert scores[2] > scores[0] - 0.02


@pytest.fixture(scope="module")
def fitted():
    known, _, shifted, batch = made((0.5, 0.5, 0.5))
    return URRL(3, **flat(**SMALL), random_state=0).fit(shifted, batch=batch), shifted, batch, known


def test_how_far_clusters_follow_the_batches_is_said(fitted):
    model, *_ = fitted
    found = model.decisions_["batches"]
    assert found["chosen"] == dict(zip(*map(np.ndarray.tolist, np.unique(fitted[2], return_counts=True)), strict=True))
    assert found["evidence"]["before"] > 0.5 > 0.05 > found["evidence"]["after"]
    assert "the effects of 2 batches were taken out; " in found["why"]
    assert " is 0.0" in found["why"]


def test_new_samples_are_corrected_as_their_batch_was(fitted, tmp_path):
    model, views, batch, _ = fitted
    model.save(tmp_path / "model")
    for one in (model, load(tmp_path / "model")):
        assert np.array_equal(one.predict(views, batch=batch), model.labels_)
        assert np.array_equal(one.predict_proba(views, batch=batch), model.soft_labels_)
        assert np.array_equal(one.transform([view[3:4] for view in views], batch=batch[3:4]), model.embedding_[3:4])
        assert np.array_equal(one.judge(with_batch(Views(views), batch)).labels, model.labels_)
        said = (
            r"\(plate 1, plate 2, \.\.\.\); name that of each sample in batch, or give with_batch\(X, batch\) in place"
        )
        for verb in (one.predict, one.novelty):
            with pytest.raises(DataError, match=said):
                verb(views)
        assert np.array_equal(one.novelty(with_batch(views, batch)), model.judge().novelty)
        with pytest.raises(DataError, match="the batch 'plate 3' is new, so its effect is not known; fit again"):
            one.predict([view[:2] for view in views], batch=["plate 1", "plate 3"])


def test_filled_values_stay_in_the_range_of_their_view(fitted, monkeypatch):
    """Counts were below zero where the effect of a batch had been taken out."""
    model, views, batch, _ = fitted
    there = ~np.isnan(views[0]).all(axis=1)
    few = with_batch([views[0][there], None], batch[there])
    least, largest = np.nanmin(views[1]).astype(np.float32), np.nanmax(views[1]).astype(np.float32)
    for far, bound in ((-1e6, least), (1e6, largest)):
        monkeypatch.setattr(Scaler, "undo", lambda self, v, view, far=far: np.full_like(view, far))
        assert (model.impute(few).arrays[1] == bound).all()


def effects_of(values, codes, *, there=None):
    """Shift of the columns of one table in each batch, and stretch."""
    there = np.ones(len(codes), dtype=bool) if there is None else there
    own = np.eye(codes.max() + 1)[codes]
    groups = groups_of([effects.BatchTable.of(values, there)], own)
    return beside(groups[there], values[there] - values[there].mean(axis=0), own[there])


def test_effects_beside_groups_are_found():
    """Values are the sum of a group and a batch, stretched; batches have other shares of the groups."""
    rng = np.random.default_rng(0)
    group = rng.permutation(np.repeat([0, 1], [300, 200]))
    code = (rng.random(500) < np.array([0.3, 0.8])[group]).astype(np.int64)
    effect, stretch = np.array([[0, 0, 0], [2.0, -3, 1]]), np.array([1, 2.0])
    values = 8 * group[:, None] * [1, 1, -1] + rng.normal(size=(500, 3)) * stretch[code][:, None] + effect[code]
    found, factor = effects_of(values, code)
    assert found[1] - found[0] == pytest.approx(effect[1], abs=0.3)
    assert factor[1] / factor[0] == pytest.approx([2.0], rel=0.25)
    alone = np.array([values[code == 1].mean(axis=0) - values[code == 0].mean(axis=0)])
    assert np.abs(alone - effect[1]).min() > 3  # means of batches would take the groups out


def two_tables(seed=0):
    """Two views in their own units, each missing of a quarter; three overlapping groups, unlike shares in batches."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat([0, 1, 2], [90, 70, 50]))
    code = (rng.random(210) < np.array([0.15, 0.5, 0.85])[group]).astype(np.int64)
    shifts = [rng.choice([-30.0, 30], 6), rng.choice([-0.3, 0.3], 4)]
    arrays = [50 + 10 * (rng.normal(size=(210, 6)) + 2.5 * np.eye(6)[group]) + code[:, None] * shifts[0],
              0.1 * (rng.normal(size=(210, 4)) + 2.5 * np.eye(4)[group]) + code[:, None] * shifts[1]]  # fmt: skip
    there = rng.random((210, 2)) < 0.75
    there[~there.any(axis=1), 0] = True
    tables = [effects.BatchTable.of(array, own) for array, own in zip(arrays, there.T, strict=True)]
    return tables, group, code, [shift / table.deviation for shift, table in zip(shifts, tables, strict=True)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_groups_of_all_views_give_shifts_nearly_as_true_classes_do(seed):
    tables, group, code, shifts = two_tables(seed)
    own = np.eye(2)[code]

    def error(groups):
        found = [beside(groups[one.there], one.values, own[one.there])[0] for one in tables]
        return np.mean([np.abs(one[1] - one[0] - shift).mean() for one, shift in zip(found, shifts, strict=True)])

    known, means, ours = (error(groups) for groups in (np.eye(3)[group], np.ones((210, 1)), groups_of(tables, own)))
    assert ours < known + 0.25 * (means - known)


def test_a_mixture_is_one_of_gaussians_that_batches_move_and_stretch():
    """At the end, chances are those of densities written out, and so is Bayes' criterion."""
    tables, _, code, _ = two_tables()
    own, k, n = np.eye(2)[code], 3, len(code)
    points = [(effects._components(one, own), one.there) for one in tables]
    criterion, groups = mixture(points, own, k)
    shares = [(groups[code == b].sum(axis=0) + 1) / ((code == b).sum() + k) for b in (0, 1)]
    logs = np.log([shares[b] for b in code])
    for values, there in points:
        rows, chances = np.flatnonzero(there), groups[there]
        # Centres and shifts by ordinary least squares, each sample there once per group.
        design = [[*np.eye(k)[c], float(code[i])] for i in rows for c in range(k)]
        root = np.sqrt(chances.ravel())[:, None]
        found = np.linalg.lstsq(root * design, root * np.repeat(values, k, axis=0), rcond=None)[0]
        far = np.array(
            [[value - found[c] - code[i] * found[k] for c in range(k)] for i, value in zip(rows, values, strict=True)]
        )
        squares = (chances[:, :, None] * far**2).sum(axis=1)
        spread = [
            (squares[code[rows] == b].sum(axis=0) + 3 * squares.mean(axis=0)) / ((code[rows] == b).sum() + 3)
            for b in (0, 1)
        ]
        for place, i in enumerate(rows):
            logs[i] += norm.logpdf(far[place], scale=np.sqrt(spread[code[i]])).sum(axis=1)
    expected = np.exp(logs - np.log(np.exp(logs).sum(axis=1))[:, None])
    assert groups == pytest.approx(expected, abs=0.02)
    numbers = (5 + 4) * (k + 2 * 2) + 2 * (k - 1)
    assert criterion == pytest.approx(np.log(np.exp(logs).sum(axis=1)).sum() - numbers * np.log(n) / 2, abs=0.5)


def test_small_batches_are_corrected_in_part():
    values = np.repeat([[0.0], [6.0]], [40, 3], axis=0) + np.linspace(0, 1e-3, 43)[:, None]
    found, _ = effects_of(values, np.repeat([0, 1], [40, 3]))
    assert 2 < found[1, 0] - found[0, 0] < 5


def slow_correction(values, codes):
    """One group: the mean of a batch counts as if so many samples more had no effect: 9 over the smallest batch.
    So does its deviation, the same in all columns (their median)."""
    middle, deviation = values.mean(axis=0), values.std(axis=0)
    z = (values - middle) / deviation
    n, means = np.bincount(codes), np.array([z[codes == c].mean(axis=0) for c in np.unique(codes)])
    added = 9 / n.min()
    weights = (n / (n + added))[:, None]
    group = (weights * means).sum(axis=0) / weights.sum()
    effect = weights * (means - group)
    rest = z - group - effect[codes]
    squares = np.array([(rest[codes == c] ** 2).sum(axis=0) for c in np.unique(codes)])
    pooled = (rest**2).mean(axis=0)
    stretch = np.median(np.sqrt((squares + added * pooled) / (n[:, None] + added) / pooled), axis=1, keepdims=True)
    return middle + deviation * (z - effect[codes]) / stretch[codes]


@pytest.mark.parametrize("n", [19, 260])
def test_columns_of_a_view_are_corrected_in_their_own_units(monkeypatch, n):
    """Values with an offset, a category, missing rows, and a view that too few samples have."""
    monkeypatch.setattr(effects, "_GROUPS", (1,))
    rng = np.random.default_rng(n)
    code = (rng.random(n) < 0.3).astype(np.int64)
    code[:4] = [0, 0, 1, 1]
    rna = pd.DataFrame({"x": 70 + 5 * rng.normal(size=n) * (1 + code), "y": 3 - code + rng.normal(size=n)})
    rna["brand = A"] = rng.integers(0, 2, n)
    there = np.arange(n) % 6 != 5
    rare = np.where(np.arange(n) < 3, 8.0 + code, np.nan)[:, None]
    views = with_batch(
        Views({"rna": rna.where(np.tile(there[:, None], 3)), "rare": rare, "all": np.ones((n, 1))}), code.astype(str)
    )
    found = fit_batches(views).apply(views)
    expected = slow_correction(rna[["x", "y"]].to_numpy()[there], code[there])
    assert found.arrays[0][there, :2] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert (found.arrays[0][~there] == 0).all()
    assert np.array_equal(found.arrays[0][there, 2], rna["brand = A"][there])
    assert np.array_equal(found.arrays[1], views.arrays[1])


@pytest.mark.parametrize(("size", "said"), [(7, {}), (8, {"4": "a"})])
def test_a_handful_of_samples_may_be_of_one_batch_by_chance(size, said):
    batch, labels = np.repeat(["a", "b", "a"], [size, 20, 20]), np.repeat([4, 7], [size, 40])
    views = with_batch(Views([np.random.default_rng(0).normal(size=(len(batch), 2))]), batch)
    with warnings.catch_warnings(action="ignore"):
        assert batch_effects(views, views, labels).alone == said


@pytest.mark.parametrize(("in_a", "more_a", "said"), [(19, 10, True), (18, 10, False), (20, 60, False), (20, 50, True)])
def test_a_cluster_of_a_batch_is_said_where_the_batch_is_not_nearly_all(recwarn, in_a, more_a, said):
    """Of 20 samples of the first cluster so many are in a, of 10 and more others; 20 are in b."""
    batch = np.repeat(["a", "b", "a", "b"], [in_a, 20 - in_a, more_a, in_a])
    labels = np.repeat([4, 7], [20, len(batch) - 20])
    shift = 100.0 * (batch == "a")[:, None] + np.random.default_rng(0).normal(size=(len(batch), 2))
    few = np.where(np.arange(len(batch)) < 2, 1.0, np.nan)[:, None]
    views = with_batch(Views([shift, few]), batch)
    found = batch_effects(views, views, labels)
    assert found.alone == ({"4": "a"} if said else {})
    assert len(recwarn.list) == said
    assert found.evidence["before"] == pytest.approx(0.5)  # batches themselves in one view, nothing in the other
    assert found.evidence["after"] < 0.5
    recwarn.clear()


def test_clusters_that_are_nearly_the_batches_are_warned_of():
    batch = np.repeat(["a", "b"], 30)
    views = with_batch(Views([np.random.default_rng(0).normal(size=(60, 2))]), batch)
    for strays, is_said in ((3, True), (4, False)):
        labels = np.repeat([0, 1, 0, 1], [30 - strays, strays, strays, 30 - strays])
        if is_said:
            with pytest.warns(SuspiciousDataWarning, match="clusters follow the batches"):
                assert batch_effects(views, views, labels).evidence["after"] > 0.5
        else:
            assert 0.4 < batch_effects(views, views, labels).evidence["after"] < 0.5


def test_a_class_in_one_batch_alone_is_said():
    rng = np.random.default_rng(2)
    known = np.repeat([0, 1, 2], 40)
    views = [rng.normal(size=(120, 6)) + 6 * rng.normal(size=(3, 6))[known] for _ in range(2)]
    batch = np.where((known == 2) | (rng.random(120) < 0.5), "a", "b")
    with pytest.warns(SuspiciousDataWarning, match=r"cluster \d is in batch 'a' alone.*confounded"):
        model = URRL(3, **flat(**SMALL), random_state=0).fit(views, batch=batch)
    assert list(model.decisions_["batches"]["alone"].values()) == ["a"]
    assert "is in a alone: confounded" in model.decisions_["batches"]["why"]


@pytest.mark.parametrize(("n", "width"), [(2, 3), (1, 3), (2, 4)])
def test_saved_effects_that_do_not_fit_are_refused(n, width):
    tensors = {"batch_factor.0": torch.full((2, 3), 2.0, dtype=torch.float64)}
    tensors["batch_factor.0"][1, 1] = torch.nan
    with pytest.raises(ValueError, match=r"^batch_factor\.0 is "):
        persistence._finite(tensors, "batch_factor.0", torch.float64, n, width)


def test_batches_come_in_any_form():
    ids = ["p", "q", "r", "s"]
    rna = pd.DataFrame({"x": [1.0, 2, 3, 4], "site": ["Ulm", "Bonn", "Ulm", "Bonn"], "run": [3, 5, 5, 3]}, ids)
    views = Views({"rna": rna})
    expected = ["Ulm", "Bonn", "Ulm", "Bonn"]
    series = pd.Series(expected[1:] + expected[:1], ids[1:] + ids[:1])
    for given in (expected, dict(zip(ids, expected, strict=True)), series, series.to_frame("site")):
        assert with_batch(views, given).batch.tolist() == expected
    taken = with_batch(views, "site")
    assert (taken.batch.tolist(), taken.columns) == (expected, (["x", "run"],))
    assert with_batch(views, "run").batch.tolist() == ["3", "5", "5", "3"]
    assert batch_added(views, None) is views
    part = anndata.AnnData(rna[["x"]], obs=rna[["site"]])
    with mudata.set_options(pull_on_update=False):
        whole = mudata.MuData({"rna": part, "protein": anndata.AnnData(rna[["run"]][:2], obs=rna[["site"]][:2])})
    for given in (part, {"rna": part}, whole):
        assert with_batch(given, "site").batch.tolist() == expected
    assert taken[[1, 2]].batch.tolist() == expected[1:3]
    with pytest.raises(DataError, match="batch 'plate' is no column of a view"):
        with_batch(views, "plate")
    with pytest.raises(DataError, match="the batch of 's' is not known"):
        with_batch(views, dict(zip(ids[:3], expected[:3], strict=True)))
    with pytest.raises(DataError, match="the batch of 'q' is not known"):
        with_batch(views, ["Ulm", "NA", "Ulm", "Bonn"])
    other = pd.DataFrame({"y": [4.0, 3, 2, 1], "site": ["Ulm", "Bonn", "Bonn", None]}, ids)
    with pytest.raises(DataError, match="the batch 'site' of 'r' is 'Ulm' in one view and 'Bonn' in another"):
        with_batch(Views({"rna": rna, "protein": other}), "site")
    other.loc["r", "site"] = "Ulm"
    assert with_batch(Views({"rna": rna, "protein": other}), "site").batch.tolist() == expected
    with pytest.raises(DataError, match="has nothing but the batch 'site'"):
        with_batch(Views({"rna": rna[["site"]]}), "site")
    with pytest.raises(DataError, match=r"batch 'a' of 2 has 1 sample"):
        URRL(2, **flat(**SMALL)).fit(np.arange(12.0).reshape(6, 2), batch=list("abbbbb"))


def test_batches_are_refused_where_a_model_has_none(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(12, 3)), columns=list("abc"))
    model = URRL(2, **flat(pretrain_epochs=1, joint_epochs=0, scaling="standard")).fit({"rna": table})
    with pytest.raises(DataError, match="the model was fitted without batches, so it takes out none; leave out batch"):
        model.predict({"rna": table}, batch=["a", "b"] * 6)
    model.save(tmp_path / "model")
    table.assign(plate=["a", "b"] * 6).to_csv(tmp_path / "rna.csv", index_label="id")
    done = run("predict", tmp_path / "model", tmp_path / "rna.csv", "--batch", "plate", "--out", tmp_path / "new.csv")
    assert done.exit_code == 2
    assert "fitted without batches, so it takes out none; leave out --batch" in done.output


def test_a_column_is_taken_out_with_its_offset_and_what_is_left_is_a_view():
    """The third sample has nothing but its batch in one view, the last one lacks that view and has it in the other."""
    first = np.array([[0.5, 1, 7], [0, 2, np.nan], [1.5, np.nan, np.nan], [0, 0, 0]], dtype=np.float32)
    second = np.array([[1.0, 0, 0], [2, 1, 0], [3, 0, 0], [4, 1, 0.5]], dtype=np.float32)
    mask = np.array([[True, True], [True, False], [True, True], [False, True]])
    views = Views({"u": pd.DataFrame(first, columns=["run", "x", "y"]).fillna(-1),
                   "w": pd.DataFrame(second, columns=["z", "run = B", "run = A"])}, mask=mask)  # fmt: skip
    arrays = (first, views.arrays[1])
    views = views.replace(arrays=arrays, offsets=(np.array([20240117.0, 0.0, 50.0]), 0.0))
    taken = with_batch(views, "run")
    assert taken.batch.tolist() == ["20240117.5", "20240117", "20240118.5", "B"]
    assert (taken.columns, taken.mask.tolist()) == (
        (["x", "y"], ["z"]), [[True, True], [True, False], [False, True], [False, True]])  # fmt: skip
    assert taken.offsets[0].tolist() == [0, 50]
    assert np.nan_to_num(taken.arrays[0], nan=-1).tolist() == [[1, 7], [2, -1], [0, 0], [0, 0]]
    frame = pd.DataFrame({"run": [3.0, 4], "x": [3.0, 4]}, ["p", "q"])
    twice = Views({"u": frame, "w": frame}, mask=[[True, False], [True, True]])
    assert with_batch(twice, "run").batch.tolist() == ["3", "4"]  # not that of a row that is not there
    alone = Views({"u": pd.DataFrame({"run": [1.0, 2], "x": [3.0, 4]}, ["p", "q"])})
    alone = alone.replace(arrays=(np.array([[1.0, 3], [2, np.nan]]),))
    with pytest.raises(DataError, match="sample 'q' has nothing but its batch"):
        with_batch(alone, "run")


def test_columns_of_obs_are_batches():
    anndata = pytest.importorskip("anndata")
    cells = anndata.AnnData(np.ones((3, 2), np.float32), obs=pd.DataFrame({"donor": ["a", "b", "a"]}, list("uvw")))
    assert with_batch({"rna": cells}, "donor").batch.tolist() == ["a", "b", "a"]


@pytest.mark.usefixtures("quick_map")
def test_the_command_line_knows_batches(tmp_path):
    known, _, shifted, batch = made((0.5, 0.5, 0.5))
    ids = [f"s{i}" for i in range(120)]
    for v, view in enumerate(shifted):
        frame = pd.DataFrame(view, pd.Index(ids, name="id")).add_prefix("c")
        frame.assign(plate=batch).to_csv(tmp_path / f"v{v}.csv")
    pd.DataFrame({"id": ids, "batch": batch}).to_csv(tmp_path / "batch.csv", index=False)
    files = tmp_path / "v0.csv", tmp_path / "v1.csv"
    short = ["--clusters", 3, "--pretrain-epochs", 5, "--joint-epochs", 0, "--embedding-dim", 32, "--hidden-dim", 32]
    done = run("fit", *files, "--batch", "plate", *short, "--scaling", "standard", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "the effects of 2 batches were taken out; " in done.output
    labels = pd.read_csv(tmp_path / "run" / "labels.csv").label
    assert clustering_accuracy(known, labels) > 0.9
    for given in (["plate"], [tmp_path / "batch.csv", "--drop", "plate"]):
        out = tmp_path / "new.csv"
        placed = run("predict", tmp_path / "run" / "model", *files, "--out", out, "--force", "--batch", *given)
        assert placed.exit_code == 0, placed.output
        assert (pd.read_csv(out).label == labels).all()


@pytest.mark.parametrize(("n", "most"), [(9, 1), (19, 1), (20, 2), (29, 2), (30, 3), (150, 12), (200, 20)])
def test_a_group_has_ten_samples_or_more(monkeypatch, n, most):
    asked = []
    monkeypatch.setattr(effects, "mixture", lambda points, own, k: asked.append(k) or (0.0, np.ones((n, 1))))
    effects_of(np.random.default_rng(0).normal(size=(n, 3)), np.arange(n) % 2)
    assert asked == [k for k in (1, 2, 3, 4, 6, 8, 12, 20) if k <= most]
