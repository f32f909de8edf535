"""How far samples lie from what a model knows, beside a version in plain loops."""

from __future__ import annotations

from math import log, nan, sqrt

import numpy as np
import pytest
import torch
from scipy import sparse

from conftest import make_blobs
from viewfuse import URRL, Config, SettingError, Views
from viewfuse.errors import OutOfRangeWarning
from viewfuse.fitted import novelty
from viewfuse.fitted.model import Source, prepare, scaled_tensors, scalers_of
from viewfuse.fitted.novelty import unseen_shares
from viewfuse.neighbors.index import Samples, index_new_samples, index_training_set
from viewfuse.reduction.reduce import fit_reduction
from viewfuse.selection import confidence
from viewfuse.selection.rules import Fences

QUICK = {"config": Config(embedding_dim=8, hidden_dim=16, pretrain_epochs=2, joint_epochs=0), "scaling": "standard"}


@pytest.fixture(scope="module")
def fitted():
    views, *_ = make_blobs(120, 3, missing=0.3)
    return URRL(3, random_state=0, **QUICK).fit(views), views


def literal_nearest(values, present):
    """Per view the distance of every training sample that has it to the nearest other one."""
    rows = [np.flatnonzero(present[:, v]) for v in range(len(values))]
    return [
        {i: min(sqrt(sum((view[i] - view[j]) ** 2)) for j in own if j != i) for i in own}
        for view, own in zip(values, rows, strict=True)
    ]


def literal(nearest, row):
    """The Fisher sum of one training sample."""
    parts = []
    for usual in nearest:
        if row not in usual:
            continue
        far = usual[row]
        share = np.mean([(one < far - 1e-9) + 0.5 * (abs(one - far) <= 1e-9) for one in usual.values()])
        parts.append(-log(1 - share + 1e-3))
    return sum(parts) / sqrt(len(parts))


@pytest.mark.parametrize(("rows", "column", "change"), [(10, 1, 1), (9, 1, 1), (10, 1, -1), (10, 0, 0), (10, 2, 1)])
def test_a_column_of_which_no_value_was_seen_is_told(fitted, rows, column, change, recwarn):
    """Where all of ten rows are beyond one end of the column; one row that is not is enough to say nothing."""
    model, views = fitted
    there = [view[~np.isnan(view).any(axis=1)] for view in views]
    new = [view[:rows].copy() for view in there]
    low, high = there[1].min(axis=0)[column], there[1].max(axis=0)[column]
    new[1][:, column] += change * 1.01 * (high - low)
    new[1][0, column] = high if column == 2 else new[1][0, column]
    model.predict(new)
    outside = all(value < low for value in new[1][:, column]) or all(value > high for value in new[1][:, column])
    said = [f"view 'view_1', column {column}: no value lies among those"] * (outside and rows >= 10)
    assert [str(one.message).split(" that the")[0] for one in recwarn if one.category is OutOfRangeWarning] == said
    assert outside is (change != 0 and column == 1)


def test_novelty_by_a_literal_reference(fitted):
    model, views = fitted
    stored, found = model._model.stored, model.novelty(views)
    values, present = [view.double().numpy() for view in stored.values], stored.present.numpy()
    nearest = literal_nearest(values, present)
    sums = np.array([literal(nearest, i) for i in range(0, 120, 3)])
    known = model._model.surroundings.known
    own = novelty.combined(known, [np.sort(one[~np.isnan(one)]) for one in known.T])
    assert own[::3] == pytest.approx(sums, abs=1e-6)
    count = present.sum(axis=1)
    for i in range(0, 120, 3):
        alike = own[count == count[i]] if (count == count[i]).sum() >= 30 else own
        assert found[i] == pytest.approx(np.mean([(x < own[i]) + 0.5 * (x == own[i]) for x in alike]))


def test_other_kinds_are_novel_and_the_same_kind_is_not(fitted):
    model, views = fitted
    rng = np.random.default_rng(0)
    spread = [np.nanstd(view, axis=0) for view in views]
    alike = [
        view[:60] + 0.05 * one * rng.normal(size=(60, view.shape[1])) for view, one in zip(views, spread, strict=True)
    ]
    other = [view[:60] + 3 * one for view, one in zip(views, spread, strict=True)]
    with pytest.warns(OutOfRangeWarning, match=r"view 'view_0', column 2: no value lies among those that the model"):
        assert (model.novelty(other) > 0.95).mean() > 0.9
    assert (model.novelty(alike) > 0.95).mean() < 0.1


@pytest.mark.parametrize(
    ("trained", "given", "said"),
    [
        ("counts", "logs", "fractions, the model was fitted on whole numbers"),
        ("counts", "log2", "fractions, the model was fitted on whole numbers"),
        ("logs", "counts", "whole numbers, the model was fitted on fractions"),
        ("counts", "counts", ""),
        ("logs", "logs", ""),
    ],
)
def test_logarithms_in_place_of_counts_are_warned_of(trained, given, said, recwarn):
    """Both lie in the same range, and both are placed."""
    rng = np.random.default_rng(0)
    kind = np.repeat([0, 1], 40)
    genes = rng.poisson(np.where(kind[:, None], [[1.0] * 60 + [5.0] * 60], [[5.0] * 60 + [1.0] * 60])).astype(float)
    views = {"counts": {"rna": genes, "x": 4.0 * kind[:, None] + rng.normal(size=(80, 3))}}
    views["logs"] = views["counts"] | {"rna": np.log1p(genes)}
    views["log2"] = views["counts"] | {"rna": np.log2(1 + genes)}  # one in four is whole
    model = URRL(2, random_state=0, config=Config(pretrain_epochs=1, joint_epochs=0)).fit(views[trained])
    model.predict({name: view[::3] for name, view in views[given].items()})
    heard = [str(one.message) for one in recwarn if one.category is OutOfRangeWarning]
    assert [one.split(": ")[0] for one in heard] == ["view 'rna'"] * bool(said)
    assert all(said in one for one in heard)
    model.predict({name: view[:5] for name, view in views[given].items()})  # too few to tell
    assert len([one for one in recwarn if one.category is OutOfRangeWarning]) == len(heard)


def test_shares_below_count_equals_by_half():
    known = np.array([1.0, 2.0, 2.0, 3.0])
    assert novelty.share_below(known, np.array([0.0, 1.0, 2.0, 4.0])).tolist() == [0.0, 0.125, 0.5, 1.0]
    assert novelty.share_below(known[:0], np.array([5.0])).tolist() == [0.0]
    assert novelty.combined(np.array([[nan, nan]]), np.zeros((2, 2))).tolist() == [0.0]


def test_one_sample_does_not_wait_for_a_look_at_all_training_samples(fitted, monkeypatch):
    """With 10^5 of them it waited ten times as long as for all else."""
    model, views = fitted
    one = [view[:1] for view in views]
    first = model.judge(one)
    seen = []
    for module, name in ((novelty, "combined"), (confidence, "drawn_chances")):
        work = getattr(module, name)
        monkeypatch.setattr(module, name, lambda given, *rest, work=work: seen.append(len(given)) or work(given, *rest))
    assert all(np.array_equal(a, b) for a, b in zip(model.judge(one), first, strict=True))
    assert seen == [1]
    model.judge(one, alpha=0.3)
    assert seen == [1, 120, 1]


def literal_outlying(values, present):
    """Distances to the fifth neighbour over their median, where they are beyond the fence, view by view."""
    found = np.zeros(present.shape)
    for v, view in enumerate(values):
        rows = np.flatnonzero(present[:, v])
        far = {i: sorted(np.linalg.norm(view[i] - view[j]) for j in rows if j != i)[4] for i in rows}
        usual = np.median([*far.values()])
        low, high = np.percentile(np.log([one / usual for one in far.values()]), [25, 75])
        for i, one in far.items():
            if one > 5 * usual and np.log(one / usual) > high + 4 * (high - low):
                found[i, v] = one / usual
    return found


def outlying_set(seed=0):
    """Two groups in views of other units; three samples are far off in one view or in both, twelve are a group."""
    rng = np.random.default_rng(seed)
    values = [
        unit * (rng.normal(size=(90, w)) + 4 * (np.arange(90) % 2)[:, None] + 30) for unit, w in ((9.0, 4), (0.1, 3))
    ]
    values[0][[3, 50]] += 9.0 * np.array([[60.0], [-80.0]])
    values[1][[3, 71]] += 0.1 * np.array([[90.0], [70.0]])
    values[1][78:] += 0.1 * 500
    present = rng.random((90, 2)) > 0.2
    present[[3, 50, 71]], present[~present.any(axis=1), 0], present[78:, 1] = True, True, True
    return [np.where(present[:, [v]], view, 0).astype(np.float32) for v, view in enumerate(values)], present


def test_outliers_are_those_of_the_literal_rule_and_groups_are_none():
    values, present = outlying_set()
    stored = index_training_set([torch.from_numpy(one) for one in values], torch.from_numpy(present), 9)
    found = Fences(stored).outlying(stored)
    np.testing.assert_allclose(found, literal_outlying([one.astype(float) for one in values], present), rtol=1e-5)
    assert [np.flatnonzero(one).tolist() for one in found.T] == [[3, 50], [3, 71]]


def test_equal_samples_are_no_outliers():
    stored = index_training_set([torch.ones(20, 2)], torch.ones(20, 1, dtype=torch.bool), 9)
    assert not Fences(stored).outlying(stored).any()


def test_an_estimator_names_outliers_and_goes_on_after_it_was_saved(tmp_path):
    values, present = outlying_set()
    views = {"a": np.where(present[:, [0]], values[0], np.nan), "b": np.where(present[:, [1]], values[1], np.nan)}
    model = URRL(2, random_state=0, **SMALL).fit(Views(views, ids=[f"s{i}" for i in range(90)]))
    assert np.flatnonzero(model.outliers_).tolist() == [3, 50, 71]
    why = model.decisions_["outliers"]["why"]
    assert why.startswith("outliers: 3 of 90 samples lie farther from all others than usual: ")
    assert sorted(part.split(" (")[0] for part in why.split("usual: ")[1].split(", ")) == ["s3", "s50", "s71"]
    assert "outliers" in [one["name"] for one in model.trust_.reasons]
    model.save(tmp_path / "model")
    again = URRL.load(tmp_path / "model")
    assert np.array_equal(again.outliers_, model.outliers_)
    assert again.decisions_["outliers"] == model.decisions_["outliers"]


SMALL = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=0), "scaling": "standard"}


@pytest.fixture(scope="module")
def labelled():
    """A fit in which outliers have no cluster, and its samples."""
    values, present = outlying_set()
    views = {name: np.where(present[:, [v]], values[v], np.nan) for v, name in enumerate("ab")}
    data = Views(views, ids=[f"s{i}" for i in range(90)])
    return URRL(2, outliers="label", random_state=0, **SMALL).fit(data), data


def test_outliers_are_labelled_and_all_else_is_as_if_they_were_marked(labelled, tmp_path):
    model, views = labelled
    marked = URRL(2, random_state=0, **SMALL).fit(views)
    assert np.flatnonzero(model.labels_ == -1).tolist() == np.flatnonzero(marked.outliers_).tolist() == [3, 50, 71]
    assert np.array_equal(model.soft_labels_, marked.soft_labels_)
    assert np.array_equal(np.where(model.outliers_, -1, marked.labels_), model.labels_)
    model.save(tmp_path / "all")
    model.save(tmp_path / "few", keep=40)
    again, few = URRL.load(tmp_path / "all"), URRL.load(tmp_path / "few")
    assert again.outliers == "label"
    assert np.array_equal(again.labels_, model.labels_)
    assert set(few.labels_) >= {0, 1}
    for one in (model, again):
        assert np.array_equal(one.predict(views), model.labels_)
        assert np.array_equal(one.cut(1), np.where(model.outliers_, -1, 0))
    assert model.explain(views).labels.min() >= 0
    assert model.judge().labels.tolist() == model.judge(views).labels.tolist() == model.labels_.tolist()
    assert model.judge().outlier.tolist() == model.judge(views).outlier.tolist() == model.outliers_.tolist()
    np.testing.assert_allclose(model.judge().novelty, model.novelty(views))
    assert np.array_equal(model.judge().uncertain, model.uncertain(views))


def test_new_samples_far_from_all_others_are_outliers_and_repeats_of_known_ones_are_not(labelled):
    model, views = labelled
    a, b = (np.nan_to_num(array[[0, 1, 80]].astype(float), nan=0.0) for array in views.arrays)
    near = model.judge(Views({"a": a + 0.5, "b": b + 0.005}, mask=views.mask[[0, 1, 80]]))
    with pytest.warns(UserWarning, match="far outside"):
        far = model.judge(Views({"a": a + 9e4, "b": b}, mask=np.ones((3, 2), bool)))
    assert not near.outlier.any()
    assert near.labels.min() >= 0
    assert far.outlier.all()
    assert far.labels.tolist() == [-1, -1, -1]
    assert (far.novelty > 0.95).all()


def test_what_a_user_can_do_with_a_fit_copes_with_labels_of_outliers(labelled, monkeypatch):
    model, views = labelled
    pytest.importorskip("matplotlib").use("Agg")
    for color in ("cluster", "outliers", "novelty", "confidence"):
        ax = model.plot_map(color)
        legend = [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []
        assert any(text.startswith("outlier") for text in legend) == (color in ("cluster", "outliers"))
        ax.figure.clear()
    bars = model.plot_clusters().patches
    assert sum(bar.get_height() for bar in bars[:2]) == 87
    assert "<td>" in model._repr_html_()
    model.validate(2)
    assert np.flatnonzero(model.labels_ == -1).tolist() == [3, 50, 71]
    assert model.trust_.refits == 2
    with pytest.raises(SettingError, match="outliers must be one of mark, label; got 'drop'"):
        URRL(2, outliers="drop").fit(views)


def texts(seed=0):
    """Texts of two topics, of unequal lengths, a third one that shares half of its words, and empty ones."""
    rng = np.random.default_rng(seed)
    topics = np.full((3, 300), 0.02)
    for topic in range(3):
        topics[topic, 80 * topic : 80 * topic + 100] = 1.0
    kind = np.arange(120) % 2
    lengths = rng.integers(20, 60, size=150)
    drawn = [rng.multinomial(n, topics[k] / topics[k].sum()) for n, k in zip(lengths, [*kind, *[2] * 30], strict=True)]
    counts = np.array(drawn, dtype=np.float32)
    counts[:, 240:] *= counts[:, 240:].argmax(axis=0) >= 120  # words of the third topic alone
    return counts[:120], counts[120:]


@pytest.mark.parametrize("is_sparse", [False, True])
def test_shares_of_unseen_words_by_hand(is_sparse):
    known, new = texts()
    mask = np.ones((120, 2), bool)
    mask[::7, 0] = False
    dense = np.where(mask[:, :1], known, 0)
    views = Views({"text": sparse.csr_matrix(dense) if is_sparse else dense, "n": known[:, :3]}, mask=mask)
    reduction = fit_reduction(views, {"text": "words", "n": "none"})
    found = unseen_shares(reduction, views, by_others=True)
    asked = unseen_shares(reduction, Views({"text": new, "n": new[:, :3]}))
    rows = np.flatnonzero(mask[:, 0])
    assert np.isnan(found[:, 1]).all()
    assert np.array_equal(np.isnan(found[:, 0]), ~mask[:, 0])
    for i in rows[::9]:
        others = [j for j in rows if j != i]
        logs = [log(1 + x) for x in known[i]]
        alone = sum(one for w, one in enumerate(logs) if not any(known[j, w] for j in others))
        assert found[i, 0] == pytest.approx(alone / sum(logs), abs=1e-6)
    logs = np.log1p(new[4].astype(float))
    assert asked[4, 0] == pytest.approx(logs[~known[rows].any(axis=0)].sum() / logs.sum(), abs=1e-6)


def test_texts_with_unseen_words_are_novel_also_after_the_model_was_saved(tmp_path):
    known, new = texts()
    model = URRL(2, random_state=0, reduction="words", **SMALL).fit({"text": known})
    marked = model.novelty({"text": new}) > 0.95
    assert marked.mean() > 0.9
    assert (model.novelty({"text": known}) > 0.95).mean() <= 0.06
    np.testing.assert_allclose(model.judge().novelty, model.novelty({"text": known}))
    model.save(tmp_path / "m")
    again = URRL.load(tmp_path / "m")
    assert np.array_equal(again.novelty({"text": new}), model.novelty({"text": new}))
    model.save(tmp_path / "few", keep=60)
    assert (URRL.load(tmp_path / "few").novelty({"text": new}) > 0.95).mean() > 0.8


def wide(n: int, seed: int):
    """Two kinds in 150 columns of two units, of which a third lack them, and 3 columns that stay as they are."""
    rng = np.random.default_rng(seed)
    kind = np.arange(n) % 2
    values = 3.0 * (rng.normal(size=(n, 150)) + kind[:, None] * np.linspace(-1, 1, 150)) + 40.0
    mask = np.column_stack([rng.random(n) > 0.3, np.ones(n, bool)])
    return Views({"wide": values, "n": rng.normal(size=(n, 3)) + kind[:, None]}, mask=mask)


def test_distances_of_samples_that_were_left_out_by_a_literal_reference(monkeypatch):
    views = wide(60, 0)
    reduction = fit_reduction(views, {"wide": "pca", "n": "none"})
    monkeypatch.setattr(novelty, "_MEASURED", 24)
    found = novelty.distances_left_out(reduction, views)
    assert np.isnan(found[:, 1]).all()
    order, times = np.random.default_rng(0).permutation(60), {}
    for fold in (order[:6], order[6:12], order[12:18], order[18:24]):
        rest = [i for i in range(60) if views.mask[i, 0] and i not in fold]
        table = views.arrays[0].astype(float)
        middle = table[rest].mean(axis=0)
        axes = np.linalg.svd(table[rest] - middle, full_matrices=False)[2][:10]  # as many as all samples have
        points = (table - middle) @ axes.T
        near = {i: min(np.linalg.norm(points[i] - points[j]) for j in rest if j != i) for i in range(60)}
        times |= {i: near[i] / np.median([near[j] for j in rest]) for i in fold if views.mask[i, 0]}
    wanted = np.full(60, np.nan)
    wanted[list(times)] = list(times.values())
    assert found[:, 0] == pytest.approx(wanted * np.nanmedian(wanted) ** -0.1, rel=1e-4, nan_ok=True)


def test_samples_that_were_not_measured_have_the_rank_among_those_that_were():
    near = np.array([[4.0, 1.0], [1.0, 1.0], [2.0, nan], [3.0, 5.0], [nan, 6.0]])
    values = [torch.zeros(5, 1), torch.zeros(5, 1)]
    stored = Samples(values, torch.ones(5, 2, dtype=torch.bool), torch.zeros(5, 2, 1, dtype=torch.int64))
    times = np.array([[nan, nan], [0.5, nan], [nan, nan], [0.7, nan], [nan, nan]])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(novelty, "neighbor_distances", lambda samples, stored: near.copy())
        known = novelty.Surroundings.of(stored, novelty.LeftOut(np.empty((5, 0)), times))
    # Ranks 7/8 and 3/8 between the two that were measured, 0.5 and 0.7 times the median of 2.5.
    assert known.known[:, 0] == pytest.approx([2.5 * 0.675, 1.25, 2.5 * 0.575, 1.75, nan], nan_ok=True)
    assert known.known[:, 1] == pytest.approx(near[:, 1], nan_ok=True)
    assert known.measured.tolist() == [False, True, False, True, True]  # the last one lacks the reduced view


@pytest.mark.parametrize("n", [100, 400])
def test_new_samples_of_a_wide_view_are_as_novel_as_those_of_training(n):
    """Components spread the samples that they were fitted to: measured by these, new ones all seemed very near."""
    everyone = wide(n + 200, 1)
    source = Source.of(everyone[:n])
    assert [one.how for one in source.reduction.front_ends] == ["pca", "none"]
    scaler, cpu = scalers_of(source, "standard")[0], torch.device("cpu")
    stored = prepare(source, scaler, 5, cpu)
    new = scaled_tensors(source.reduction.apply(everyone[n:]), scaler, cpu)
    rows = np.full(200, -1)
    samples = index_new_samples(*new, stored, torch.from_numpy(rows))
    surroundings = novelty.Surroundings.of(stored, source.left_out)
    found = surroundings.novelty(samples, rows, np.empty((200, 0)))
    assert 0.4 < found.mean() < 0.6
    assert 0.01 < (found > novelty.USUAL).mean() < 0.12
    own = surroundings.novelty(stored, np.arange(n), source.left_out.words)
    assert own.mean() == pytest.approx(0.5, abs=0.02)
    assert (own > novelty.USUAL).mean() == pytest.approx(0.05, abs=0.02)


def test_a_model_that_keeps_some_samples_knows_how_far_new_ones_lie(monkeypatch, tmp_path):
    """Few of those that are kept were measured, and everything was compared with these alone."""
    monkeypatch.setattr(novelty, "_MEASURED", 20)
    everyone = wide(700, 2)
    model = URRL(2, random_state=0, **QUICK).fit(everyone[:400])
    model.save(tmp_path / "few", keep=80)
    few = URRL.load(tmp_path / "few")
    known = few._model.surroundings
    assert known.measured.all()
    rows = [model.ids_.tolist().index(one) for one in few.ids_.tolist()]
    assert few._model.left_out.distances[:, 0] == pytest.approx(model._model.surroundings.times[rows, 0], nan_ok=True)
    found = few.novelty(everyone[400:])
    assert 0.35 < found.mean() < 0.65
    assert (found > novelty.USUAL).mean() < 0.15
