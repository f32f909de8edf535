"""Classes of some samples that are known before the fit: how they are read, what they change, which are doubtful."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from flat import flat
from viewfuse import URRL, Views, load
from viewfuse.cli import main
from viewfuse.data.side_information.batch_labels import with_batch
from viewfuse.data.side_information.knowledge import NOTHING, Guidance, Knowledge, sample_weights
from viewfuse.data.side_information.known_labels import UNKNOWN, Hints
from viewfuse.errors import CheckpointDiffers, DataError, SettingError, SuspiciousDataWarning
from viewfuse.methods.urrl import losses_and_augmentation as losses
from viewfuse.methods.urrl import scaling_search
from viewfuse.methods.urrl.hints import class_centers, class_numbers, doubtful, known_centers, set_aside, share_of_hints
from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.selection.decision_texts import label, restored, words
from viewfuse.selection.decisions import KnownClasses

TINY = {"pretrain_epochs": 3, "joint_epochs": 2, "hidden_dim": 8, "embedding_dim": 8, "scaling": "standard"}
IDS = np.array([f"s{i}" for i in range(7)])


def groups(sizes=(30, 18, 12), seed=0):
    """Two views of unequal units with offsets; every fourth sample lacks the second. The groups, and the views."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    sound = 1000 + 50 * (rng.normal(size=(len(truth), 4)) + 6 * np.eye(4)[truth])
    image = rng.normal(size=(len(truth), 5)) / 100 + 0.06 * np.eye(5)[truth]
    image[::4] = np.nan
    return truth, {"sound": sound, "image": image}


def partly(truth, per_class=3):
    """Labels of the first samples of each class, -1 for all others."""
    known = np.full(len(truth), -1)
    for c in np.unique(truth):
        rows = np.flatnonzero(truth == c)[:per_class]
        known[rows] = c
    return known


def test_labels_of_every_sample_are_warned_of_as_a_score_against_them_means_nothing():
    with pytest.warns(SuspiciousDataWarning, match="y has the label of every sample, and the fit learns them all"):
        Hints.of([0, 1, 1, 0, 2, 2, 1], IDS)
    assert len(Hints.of([0, 1, 1, 0, 2, 2, -1], IDS)) == 6


@pytest.mark.parametrize(
    "y",
    [
        [10, -1, 2, None, float("nan"), 10, ""],
        np.array([10, -1, 2, -1, -1, 10, -1]),
        np.array([10.0, np.nan, 2.0, np.nan, np.nan, 10.0, -1.0]),
        pd.Series([10, None, 2, pd.NA, None, "10 ", None], dtype=object),
        pd.Series([10, 10, 2], index=["s0", "s5", "s2"]),
        {"s5": "10", "s2": "2", "s0": 10.0, "s1": ""},
        np.array([[10], [-1], [2], [-1], [-1], [10], [-1]]),
    ],
    ids=["list", "integers", "floats", "objects", "series of ids", "dict", "one column"],
)
def test_labels_of_every_form_are_the_same_hints(y):
    hints = Hints.of(y, IDS)
    assert hints.classes == ("2", "10")
    assert hints.codes.tolist() == [1, UNKNOWN, 0, UNKNOWN, UNKNOWN, 1, UNKNOWN]
    assert len(hints) == 3
    back = Hints.from_classes(hints.by_class(IDS), IDS[::-1])
    assert back.codes.tolist() == hints.codes[::-1].tolist()


def test_an_index_beside_samples_without_ids_means_nothing():
    y = pd.Series(["b", "a", None], index=[2, 0, 1])
    with pytest.warns(SuspiciousDataWarning, match="y is taken in its order, though its index has the ids"):
        assert Hints.of(y, np.arange(3)).codes.tolist() == [1, 0, UNKNOWN]
    with pytest.warns(SuspiciousDataWarning, match=r"give y.to_numpy\(\) if that is meant"):
        assert Hints.of(y.reset_index(drop=True), np.array([2, 0, 1])).codes.tolist() == [1, 0, UNKNOWN]
    assert Hints.of(y.set_axis([5, 6, 7]), np.arange(3)).codes.tolist() == [1, 0, UNKNOWN]
    assert Hints.of(y, np.array([2, 0, 1])).codes.tolist() == [1, 0, UNKNOWN]
    assert Hints.of(y, np.array([0, 2, 1])).codes.tolist() == [0, 1, UNKNOWN]


def test_labels_that_count_from_0_are_labels():
    """A frame whose index is 0, 1, 2, ..., but not that of pandas itself, has ids; a series is matched by them."""
    views = Views(pd.DataFrame(np.eye(3), index=[0, 1, 2]))
    y = pd.Series(["b", "a", None], index=[2, 0, 1])
    for ids in (views.ids, views[:].ids, Views(np.eye(3), ids=views.ids).ids):
        assert ids.tolist() == [0, 1, 2]
        assert Hints.of(y, ids).codes.tolist() == [0, UNKNOWN, 1]
        assert sample_weights(pd.Series([3, 1, 2], index=[2, 0, 1]), ids).tolist() == [0.5, 1, 1.5]
    batch = with_batch(views, pd.Series(["b", "a", "c"], index=[2, 0, 1])).batch
    assert batch.tolist() == ["a", "c", "b"]


def test_classes_are_in_their_own_order_and_written_as_ids_are():
    """Numbers come before text, and spellings of one number in one order; an id may be composed in two ways."""
    y = ["b", "10", "1.00", "1", "01", "1.0", "a"]
    assert Hints.of(y, IDS).classes == ("01", "1", "1.0", "1.00", "10", "a", "b")  # one sample each: nothing to warn of
    assert Hints.of({"e\u0301": "a", "x": ""}, np.array(["\u00e9", "s"])).codes.tolist() == [0, UNKNOWN]
    assert Hints.of([pd.NaT, np.float32(3), "3"], IDS[:3]).by_class(IDS) == {"3": ["s1", "s2"]}
    one, other = Hints.of(["a", "b", None], IDS[:3]), Hints.of(["a", "c", None], IDS[:3])
    assert len({one.digest(), other.digest(), one.take(np.array([1, 0, 2])).digest()}) == 3
    assert one.take(np.array([1, 2, 0])).codes.tolist() == [1, UNKNOWN, 0]
    assert Knowledge(one).number(1, 3, asked=False) == 2  # not warned of
    assert Knowledge(one).number(2, 3, asked=True) == 2


@pytest.mark.parametrize("y", [None, [-1] * 7, [None] * 7, {}, np.full(7, np.nan)])
def test_without_any_label_there_are_no_hints(y):
    assert Hints.of(y, IDS) is None


@pytest.mark.parametrize(
    ("y", "fault"),
    [
        ([1, 2], "2 labels for 7 samples"),
        ([[1, 2]] * 7, "lists instead of labels"),
        ({"x1": "a"}, "'x1' is no id, but 's0' is"),
        ({"s1": "a", " s1": "b"}, "twice"),
    ],
)
def test_mistakes_are_named(y, fault):
    with pytest.raises(DataError, match=fault):
        Hints.of(y, IDS)


def test_hints_about_no_sample_are_counted():
    with pytest.warns(SuspiciousDataWarning, match="2 labels of y, such as that of 'x', are about no sample"):
        assert len(Hints.of({"s1": "a", "x": "a", "y": "b"}, IDS)) == 1


def test_the_number_of_clusters_is_at_least_that_of_the_classes():
    hints = Hints.of(list("abc") + [None] * 4, IDS)
    assert Knowledge(hints).range((1, 200), 7) == (3, 200)
    assert Knowledge(hints).range((1, 2), 7) == (3, 3)
    assert Knowledge(hints).range((5, 9), 7) == (5, 9)
    assert NOTHING.range((1, 9), 7) == (1, 9)
    assert Knowledge(Hints.of(["a", "b", *[None] * 5], IDS)).range((1, 9), 7) == (2, 9)
    truth, views = groups()
    with pytest.warns(SuspiciousDataWarning, match="the hints name 3 classes, so there are 3 clusters, not 2"):
        assert URRL(2, **flat(**TINY)).fit(views, partly(truth)).n_clusters_ == 3


def test_the_loss_is_the_mean_cross_entropy_of_known_samples():
    draw = torch.Generator().manual_seed(0)
    embedding, centers = torch.randn(2, 5, 3, generator=draw), torch.randn(2, 4, 3, generator=draw)
    known = torch.tensor([[0, -1, 3, -1, 3], [-1] * 5])
    found = losses.hints(embedding, centers, known)
    costs = []
    for i, c in ((0, 0), (2, 3), (4, 3)):
        kernel = [1 / (1 + float((embedding[0, i] - centers[0, j]).square().sum())) for j in range(4)]
        costs.append(-np.log(kernel[c] / sum(kernel)))
    assert found.tolist() == pytest.approx([np.mean(costs), 0.0], rel=1e-5)
    many = torch.cat([embedding[0], embedding[0].repeat(5, 1)])  # three of 30 samples count as 30 / 8
    lone = losses.hints(many, centers[0], torch.cat([known[0], -torch.ones(25, dtype=torch.int64)]))
    assert float(lone) == pytest.approx(sum(costs) / (30 / 8), rel=1e-5)


def test_clusters_are_numbered_by_the_classes_of_most_known_samples():
    rng = np.random.default_rng(3)
    for _ in range(20):
        labels, known = rng.integers(0, 4, 30), np.where(rng.random(30) < 0.4, rng.integers(0, 3, 30), UNKNOWN)
        numbers = class_numbers(labels, known, 4)
        assert sorted(numbers) == [0, 1, 2, 3]
        most = max(((np.array(one)[labels] == known).sum() for one in permutations(range(4))), default=0)
        assert (numbers[labels] == known).sum() == most
        assert share_of_hints(numbers[labels], known) == pytest.approx(most / (known != UNKNOWN).sum())


def test_doubtful_are_those_whose_neighbours_are_elsewhere_in_every_view():
    rng = np.random.default_rng(1)
    n, views, depth = 60, 2, 11
    labels = rng.integers(0, 3, n)
    known = np.where(rng.random(n) < 0.5, rng.integers(0, 3, n), UNKNOWN)
    ids = rng.integers(0, n, (n, views, depth))
    ids[rng.random((n, views)) < 0.3] = NO_NEIGHBOR
    ids[:, :, 7:][rng.random((n, views, depth - 7)) < 0.3] = NO_NEIGHBOR
    expected = []
    for i in range(n):
        said = []
        for v in range(views):
            near = [labels[j] for j in ids[i, v, :9] if j != NO_NEIGHBOR]
            if near:
                said.append(near.count(known[i]) < max(near.count(c) for c in range(3)))
        expected.append(known[i] != UNKNOWN and bool(said) and all(said))
    assert 0 < sum(expected) < (known != UNKNOWN).sum()
    assert doubtful(known, labels, ids).tolist() == expected


def test_centres_start_at_known_classes_and_leave_room_for_others():
    rng = np.random.default_rng(2)
    truth = np.repeat([0, 1, 2, 3], [40, 25, 10, 30])
    embedding = torch.from_numpy(5 + rng.normal(size=(105, 6)) + 8 * np.eye(4, 6)[truth]).float()
    known = torch.full((105,), UNKNOWN)
    known[torch.tensor([0, 1, 2])], known[torch.tensor([70, 71])] = 1, 0  # classes 0 and 2 of the truth, in other order
    none = torch.full((105, 1, 9), NO_NEIGHBOR)
    centers, doubted = known_centers(embedding, Guidance(known), 4, 0, none)
    assert not doubted.any()
    placed = torch.cdist(embedding, centers).argmin(dim=1).numpy()
    assert (placed[truth == 0] == 1).all()
    assert (placed[truth == 2] == 0).all()
    assert sorted({*placed[truth == 1], *placed[truth == 3]}) == [2, 3]


def fitted(views, y=None, **params):
    return URRL(3, **flat(**{**TINY, **params}), random_state=0).fit(views, y)


def test_without_a_known_label_nothing_changes_to_the_bit():
    truth, views = groups()
    plain, same = fitted(views), fitted(views, np.full(len(truth), -1))
    assert plain.embedding_.tobytes() == same.embedding_.tobytes()
    assert plain.soft_labels_.tobytes() == same.soft_labels_.tobytes()
    assert plain.decisions_ == same.decisions_
    assert "hints" not in plain.history_


def test_a_fit_with_hints_names_its_clusters_and_doubts_a_wrong_one(tmp_path):
    truth, views = groups()
    names, known = np.array(["oak", "ash", "elm"])[truth], partly(truth) != -1
    wrong = int(np.flatnonzero((truth == 0) & ~known)[0])
    y = np.where(known, names, None)
    y[wrong] = "elm"
    model = fitted(views, y, joint_epochs=6)
    others = ~known & (np.arange(len(truth)) != wrong)
    classes = np.array(["ash", "elm", "oak"])  # in order
    assert (classes[model.labels_[others]] == names[others]).mean() > 0.9
    assert np.array_equal(model.labels_, model.soft_labels_.argmax(axis=1))
    found = model.decisions_["hints"]
    assert found["chosen"] == known.sum() + 1
    assert list(found["evidence"]) == classes.tolist()
    own = {name: sum(model.labels_[i] == c for i in np.flatnonzero(y == name)) for c, name in enumerate(classes)}
    assert found["with_class"] == own
    assert f"cluster 0 is ash ({own['ash']} of {(y == 'ash').sum()})" in found["why"]
    assert found["doubtful"] == {str(wrong): "elm"}
    assert found["agreed"] == sum(classes[model.labels_[i]] == y[i] for i in [*np.flatnonzero(known), wrong])
    assert model.history_["hints"][:3] == [0.0] * 3
    assert min(model.history_["hints"][3:]) > 0
    decision = restored(model.decisions_)["hints"]
    assert f"{label(decision)}: {words(decision)}" == found["why"]
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").validate(2)
    assert again.trust_.refits == 2
    assert np.array_equal(again.labels_, model.labels_)


def test_fit_predict_takes_hints_too():
    truth, views = groups()
    y = partly(truth)
    model = URRL(3, **flat(**TINY), random_state=0)
    with pytest.raises(SettingError, match="like and hints both give clusters their numbers"):
        model.fit(views, y, like=model)
    assert np.array_equal(model.fit_predict(views, y), model.labels_)
    assert "hints" in model.decisions_


@pytest.mark.slow
def test_a_class_without_a_name_has_a_cluster_beside_the_known_ones():
    truth, views = groups()
    y = partly(truth)
    y[truth == 1] = -1
    model = fitted(views, y, joint_epochs=6)
    by_cluster = [np.bincount(truth[model.labels_ == c], minlength=3).argmax() for c in range(3)]
    assert by_cluster == [0, 2, 1]


def test_a_checkpoint_is_resumed_and_that_of_other_hints_is_refused(tmp_path):
    truth, views = groups()
    y = partly(truth)
    y[np.flatnonzero(truth == 1)[3]] = 2  # it is set aside
    model = fitted(views, y, checkpoint=tmp_path / "kept")
    resumed = fitted(views, y, checkpoint=tmp_path / "kept")
    assert resumed.soft_labels_.tobytes() == model.soft_labels_.tobytes()
    assert resumed.decisions_ == model.decisions_
    with pytest.raises(CheckpointDiffers, match="hints"):
        fitted(views, partly(truth, 2), checkpoint=tmp_path / "kept")


@pytest.mark.usefixtures("quick_map")
@pytest.mark.slow
def test_the_command_line_reads_hints(tmp_path):
    truth, views = groups()
    ids = [f"s{i}" for i in range(len(truth))]
    for name, table in views.items():
        pd.DataFrame(table, index=pd.Index(ids, name="id")).dropna().to_csv(tmp_path / f"{name}.csv")
    known = partly(truth)
    rows = [f"{one},{'ab'[c] if c in (0, 1) else ''}\n" for one, c in zip(ids, known, strict=True)]
    (tmp_path / "hints.csv").write_text("id,label\n" + "".join(rows))
    options = ["--clusters", "3", "--hidden-dim", "8", "--embedding-dim", "8", "--pretrain-epochs", "3"]
    files = [str(tmp_path / f"{name}.csv") for name in views]
    arguments = ["fit", *files, *options, "--joint-epochs", "2", "--trusted", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(main, [*arguments, "--hints", str(tmp_path / "hints.csv")])
    assert done.exit_code == 0, done.output
    assert "6 of 60 samples" in done.output
    known_as = load(tmp_path / "run" / "model").decisions_["hints"]["evidence"]
    assert known_as == {x: [ids[i] for i in np.flatnonzero(known == c)] for c, x in enumerate("ab")}


def test_doubtful_hints_are_set_aside_unless_clusters_are_not_the_classes():
    """Nine samples of each of four clusters on a line, whose neighbours are in their own cluster; all are hinted."""
    labels = np.repeat(np.arange(4), 9)
    ids = np.array([[[j for j in range(36) if labels[j] == labels[i] and j != i]] for i in range(36)])
    few = labels.copy()
    few[[0, 9, 10, 20]] = [1, 2, 3, 0]
    assert np.flatnonzero(set_aside(few, labels, ids)).tolist() == [0, 9, 10, 20]
    one_class = labels.copy()
    one_class[[27, 28, 29, 30, 31, 0]] = [
        0,
        0,
        0,
        0,
        0,
        1,
    ]  # five of cluster 3 are called class 0, and four are class 3
    one_class[1:9] = UNKNOWN
    assert np.flatnonzero(set_aside(one_class, labels, ids)).tolist() == [0]  # no hint of class 0 is in cluster 0
    many = labels.copy()
    many[::3] = (many[::3] + 1) % 4
    many[[1, 10]] = [3, 2]
    assert set_aside(many, labels, ids).sum() == 14  # less than 40 %
    many[19] = 0
    assert not set_aside(many, labels, ids).any()


def test_hints_that_are_set_aside_do_not_pull():
    known = torch.tensor([0, -1, 2, 2])
    assert Guidance(known).followed is known
    assert Guidance(known, torch.tensor([False, False, True, False])).followed.tolist() == [0, -1, -1, 2]
    assert Guidance().followed is None


def parallel_lines(n=240):
    """Points on two lines side by side, unequal in number, and their classes."""
    rng, classes = np.random.default_rng(0), np.repeat([0, 1], [n // 3, n - n // 3])
    points = np.stack([rng.uniform(-3, 3, n), 2.0 * classes + 0.2 * rng.normal(size=n), 0.3 * rng.normal(size=n)], 1)
    return torch.from_numpy(100 + 5 * points).float(), classes, points


def nearest(embedding, centers):
    """The nearest centre of each sample, one by one."""
    return np.array([int(((centers - one) ** 2).sum(dim=1).argmin()) for one in embedding])


def test_hints_teach_classes_that_clusters_cut_across():
    embedding, classes, points = parallel_lines()
    known = np.where(np.arange(240) % 6 == 0, classes, UNKNOWN)
    across = (points[:, 0] > 0).astype(np.int64)
    centers = class_centers(embedding, across, known, 2)
    assert np.mean(nearest(embedding, centers) == classes) > 0.99
    for c in range(2):  # the regression knows all samples of these lines: the means are those of the classes
        assert torch.allclose(centers[c], embedding[torch.from_numpy(classes == c)].mean(dim=0), atol=0.05)
    assert class_centers(embedding, classes, known, 2) is None  # the clusters are the classes


@pytest.mark.parametrize(("wrong", "taken"), [(1, False), (2, False), (3, True), (9, True)])
def test_classes_must_be_ahead_of_clusters_by_one_and_a_half_standard_errors(wrong, taken):
    embedding, classes, _ = parallel_lines()
    far = embedding + 100 * torch.from_numpy(np.stack([0 * classes, classes, 0 * classes], axis=1))  # all are known
    known = np.where(np.arange(240) % 6 == 0, classes, UNKNOWN)
    labels = np.where(np.isin(np.arange(240), 6 * np.arange(1, wrong + 1)), 1 - classes, classes)
    assert taken == (wrong > 1.5 * np.sqrt(wrong))
    assert (class_centers(far.float(), labels, known, 2) is not None) == taken


def test_a_hint_that_is_wrong_is_outvoted_by_its_cluster():
    embedding, classes, points = parallel_lines()
    known = np.where(np.arange(240) % 6 == 0, classes, UNKNOWN)
    known[[6, 60, 120, 180]] = 1 - classes[[6, 60, 120, 180]]
    centers = class_centers(embedding, (points[:, 0] > 0).astype(np.int64), known, 2)
    assert np.mean(nearest(embedding, centers) == classes) > 0.99


def test_classes_need_hints_of_every_cluster():
    embedding, classes, points = parallel_lines()
    across = (points[:, 0] > 0).astype(np.int64)
    known = np.where(np.arange(240) % 6 == 0, classes, UNKNOWN)
    assert class_centers(embedding, across, known, 3) is None  # nothing is known of the third cluster
    rare = np.where((np.arange(240) < 80) & (np.arange(240) > 6), UNKNOWN, known)
    rare[6] = UNKNOWN
    assert (rare == 0).sum() == 1  # a class with one hint is always taught, never asked for
    assert class_centers(embedding, 1 - (classes == 0) * (np.arange(240) > 40), rare, 2) is None
    found = class_centers(embedding, np.where(np.arange(240) % 5 == 0, 0, 1), rare, 2)
    assert np.mean(nearest(embedding, found) == classes) > 0.8
    few = np.where(np.isin(np.arange(240), np.r_[:5, 100:105]), classes, UNKNOWN)
    assert class_centers(embedding, 1 - across, few, 2) is not None
    few[104] = UNKNOWN
    assert class_centers(embedding, 1 - across, few, 2) is None  # nine hints of two classes


def test_the_network_takes_the_centres_of_the_classes(monkeypatch):
    truth, views = groups()
    wanted, expected = np.roll(np.arange(3), 1)[truth], []

    def means(embedding, labels, known, k):
        centers = torch.stack([embedding[torch.from_numpy(wanted == c)].mean(dim=0) for c in range(k)])
        expected.append(nearest(embedding, centers))
        return centers

    monkeypatch.setattr(scaling_search, "class_centers", means)
    model = fitted(views, partly(truth))
    assert model.decisions_["clusters"]["chosen"] == "hints"
    assert "those of the hints, which the network was taught, as more are" in model.decisions_["clusters"]["why"]
    assert model.labels_.tolist() == expected[-1].tolist()
    assert np.mean(model.labels_ == wanted) > 0.8


def test_clusters_in_the_embedding_have_the_numbers_of_the_classes_that_are_followed(monkeypatch):
    found = np.array([2, 2, 2, 0, 0, 1, 1])
    monkeypatch.setattr(scaling_search, "tree_clusters", lambda *_: found)
    monkeypatch.setattr(scaling_search, "unequal_clusters", lambda *_: (found + 1) % 3)
    stored = SimpleNamespace(neighbor_ids=None)
    run = SimpleNamespace(method=SimpleNamespace(n_clusters=3), known=Guidance(), seed=0, stored=stored)
    trial = SimpleNamespace(run=run)
    own = scaling_search.Trial.in_embedding(trial, None)
    assert {name: one.tolist() for name, one in own.items()} == {
        "tree": found.tolist(),
        "linkage": [0, 0, 0, 1, 1, 2, 2],
    }
    classes, doubted = torch.tensor([0, 1, 1, -1, -1, -1, 2]), torch.arange(7) % 3 > 0
    run.known = Guidance(classes, doubted)
    own = scaling_search.Trial.in_embedding(trial, None)
    assert [one.tolist() for one in own.values()] == [[0, 0, 0, 1, 1, 2, 2]] * 2
    for name in ("tree_clusters", "unequal_clusters"):
        monkeypatch.setattr(scaling_search, name, lambda *_: None)
    assert scaling_search.Trial.in_embedding(trial, None) == {}


def test_a_cluster_that_holds_another_class_is_said():
    found = KnownClasses(3, {"b": ["s1"], "cd8": ["s2", "s3"]}, 9, 2, {}, with_class={"b": 1, "cd8": 1})
    said = "2 are with their class: cluster 0 is b (1 of 1), cluster 1 is NOT cd8 (1 of 2)"
    assert words(found) == f"3 of 9 samples, {said}"
    alone = KnownClasses(1, {"b": ["s1"]}, 9, 1, {}, with_class={"b": 1})
    assert words(alone).endswith(
        "b (1 of 1); nothing says which samples are not of the one class: name some of another, too"
    )
    before = KnownClasses(3, {"b": ["s1"], "cd8": ["s2", "s3"]}, 9, 2, {})  # as models of before have it
    assert words(before).endswith("cluster 0 is b, cluster 1 is cd8")
