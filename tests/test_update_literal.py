"""The parts of an update one by one: who is known, what is trained on, what is taken back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import Module, Parameter

from viewfuse.data.filling import EmptyCells
from viewfuse.data.side_information.knowledge import Guidance
from viewfuse.errors import DataError, EmptyCellsWarning
from viewfuse.fitted.novelty import LeftOut
from viewfuse.methods import updating
from viewfuse.methods.number_of_clusters import NewKind
from viewfuse.methods.updating import Enlarged
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.neighbors.index import Samples
from viewfuse.selection.rules import clustering_weight


def samples_of(values):
    values = torch.tensor(values)[:, None]
    return Samples([values], torch.ones(len(values), 1, dtype=torch.bool), torch.zeros(len(values), 1, 1))


def enlarged(labels, novel, n_old, numbers=(0, 1, 2), model=None, width=3):
    return Enlarged(model, np.array(numbers), np.array(labels), np.array(novel, dtype=bool), n_old, width)


def test_columns_that_are_empty_in_part_are_filled_and_said():
    cells = [EmptyCells("rna", 4, ["x", "y"], np.array([1, 3]), by_median=1)]
    with pytest.warns(EmptyCellsWarning, match="empty cells were filled"):
        assert updating._same_columns(lambda X: (X, cells), "views") == "views"
    with pytest.raises(DataError, match=r"view 'rna' has no value in 1 columns, such as 'y'"):
        updating._same_columns(lambda X: (X, [EmptyCells("rna", 4, ["x", "y"], np.array([1, 4]))]), "views")
    for more, said in ((["b"], "id 'b' is among"), (["b", "c", "a"], "id 'b' and 1 more are among")):
        with pytest.raises(DataError, match=said):
            updating.joined_ids(np.array(["a", "b"]), np.array(more))


def test_only_old_samples_that_do_not_wait_have_a_cluster():
    assert enlarged([0, 1, 2, 0], [0, 1, 0, 0], 3).settled().tolist() == [0, -1, 2, -1]


def test_samples_that_wait_are_compared_with_those_that_do_not():
    asked = []

    def novelty(located, rows, words):
        asked.append((located, rows, words.ravel().tolist()))
        return np.array([0.96, 0.5, 0.95, 0.99])

    known = SimpleNamespace(locate=lambda values, present: values[0].ravel().tolist(),
                            known_rows=len, surroundings=SimpleNamespace(novelty=novelty))  # fmt: skip
    model = SimpleNamespace(
        stored=samples_of([10.0, 20, 30]), left_out=LeftOut(np.array([[1.0], [2], [3]]), np.empty((3, 0))),
        thinned=lambda rows: asked.append(rows.tolist()) or known,
    )  # fmt: skip
    found = updating._novel(model, samples_of([40.0, 50]), np.array([[4.0], [5]]), np.array([False, True, True]))
    assert asked == [[0], ([20, 30, 40, 50], 4, [2, 3, 4, 5])]
    assert found.tolist() == [False, True, False, False, True]


def test_old_samples_keep_their_neighbours_and_equal_ones_have_the_same():
    """The third sample is new, the fourth is the first one again, the fifth the third."""
    stored = replace(samples_of([1.0, 2, 3, 1, 3]), neighbor_ids=torch.arange(10, 15).reshape(5, 1, 1))
    model = SimpleNamespace(stored=replace(samples_of([1.0, 2]), neighbor_ids=torch.tensor([[[1]], [[0]]])))
    found = updating._with_former_neighbors(stored, model)
    assert found.neighbor_ids.ravel().tolist() == [1, 0, 12, 1, 12]
    assert found.values is stored.values


@pytest.mark.parametrize(("n_old", "n_new", "kept"), [(10_000, 600, 2_400), (10_000, 100, 2_000), (50, 30, 50)])
def test_old_samples_are_trained_on_four_for_a_new_one_or_more(monkeypatch, n_old, n_new, kept):
    monkeypatch.setattr(updating, "representatives", lambda labels, present, keep: np.arange(keep))
    stored = SimpleNamespace(present=torch.ones(n_old + n_new, 1, dtype=torch.bool))
    model = SimpleNamespace(stored=stored, method=URRLMethod(Config(joint_epochs=33)))
    epochs, rows = updating._plan(enlarged([0] * (n_old + n_new), [0] * (n_old + n_new), n_old, model=model))
    assert epochs == [ceil(33 / 8), ceil(33 / 4)]
    assert rows.tolist() == [[*range(kept), *range(n_old, n_old + n_new)]]


def test_losses_have_the_weights_of_the_fit():
    model = SimpleNamespace(stored=samples_of([1.0]), method=URRLMethod(Config(view_dropout=0.2)))
    decided = {"joint_stage": {"evidence": {"clustering_weight": 0.07}}}
    assert updating.JointStageLength.name in decided
    assert updating._loss_numbers(model, {"reconstruction": [3.0, 0.5]}, decided) == {
        "view_dropout": 0.2, "clustering_weight": 0.07,
    }  # fmt: skip
    usual = updating._loss_numbers(model, {"reconstruction": [3.0, 0.5]}, {})
    assert usual["clustering_weight"] == clustering_weight(0.5)


@pytest.mark.parametrize(("rate", "taken"), [(2.7e-3, 1.8e-3), (6e-4, 6e-4)])
def test_training_has_hints_and_at_most_the_rate_of_small_sets(monkeypatch, rate, taken):
    @dataclass(frozen=True)
    class Stage:
        name: str = "joint"
        elements: object = None
        rate: float = 0.0

    ran = []
    monkeypatch.setattr(updating, "Training", lambda runs: SimpleNamespace(run=ran.append))
    monkeypatch.setattr(updating, "joint_stage", lambda training, epochs: Stage(rate=rate))
    monkeypatch.setattr(updating, "check_diverged", ran.append)
    known = Guidance(torch.tensor([1, 1]), torch.tensor([True, False]), weights=torch.tensor([2.0, 0.0]))
    run = SimpleNamespace(method=URRLMethod(Config()), device="cpu", known=known)
    updating._train(run, np.array([0, -1]), 5, "rows")
    assert ran == [Stage("update", "rows", taken), [run]]
    assert (run.known.followed.tolist(), run.method.hint_weight) == ([0, -1], 3.0)
    assert run.known.weights is known.weights


class Network(Module):
    """Centres and another weight."""

    def __init__(self):
        super().__init__()
        self.centers, self.weight = Parameter(torch.arange(6.0).reshape(3, 2)), Parameter(torch.ones(1))


@pytest.mark.parametrize(
    ("left_at", "taken"),
    [({}, 1.0), ({1.0: 2}, 0.75), ({1.0: 1}, 1.0), ({1.0: 9, 0.75: 9, 0.5: 2}, 0.25),
     ({1.0: 9, 0.75: 4, 0.5: 3, 0.25: 3, 0.0: 5}, 0.5)],
)  # fmt: skip
def test_a_training_counts_as_far_as_known_samples_stay(monkeypatch, left_at, taken):
    """Of 200 known samples one may leave its cluster; by how much of the training counts, so many do."""
    known = np.array([0, 1, 2, 1] * 50 + [-1] * 30)
    run = SimpleNamespace(network=Network(), method=None)
    before = {name: own.clone() for name, own in run.network.state_dict().items()}
    run.network.weight.data += 4
    run.network.centers.data -= 8

    def found(*given):
        step = (run.network.weight.item() - 1) / 4
        return torch.from_numpy(np.where(np.arange(230) < left_at.get(step, 0), 9, known))

    monkeypatch.setattr(updating, "embed_stored", lambda run: None)
    monkeypatch.setattr(updating, "clusters", found)
    updating._hold_back(run, before, known)
    assert run.network.weight.item() == 1 + 4 * taken
    assert torch.equal(run.network.centers.detach(), before["centers"] - 8 * taken)


@pytest.mark.parametrize(("right", "stays"), [(19, True), (18, False)])
def test_new_clusters_are_taken_back_where_known_samples_leave_theirs(monkeypatch, right, stays):
    """Of twenty samples whose clusters are known, two of them of the new kind, so many are in these afterwards."""
    labels = np.array([0, 1, 2] * 6 + [0, 0, 1])
    given = enlarged(labels, [0] * 18 + [1] * 3, 18)
    expected = np.array([*labels[:18], 3, 3, -1])
    seen = []

    def train(run, known, epochs, rows):
        seen.append((known.tolist(), epochs))
        run.network.weight.data += 1
        run.network.centers.data += 1
        run.history["loss"].append(2)

    found = torch.from_numpy(np.where(np.arange(21) < 20 - right, 9, expected))
    monkeypatch.setattr(updating, "_train", train)
    monkeypatch.setattr(updating, "embed_stored", lambda run: torch.zeros(21, 2))
    monkeypatch.setattr(updating, "centers_of", lambda embedding, labels, count: torch.full((count, 2), 7.0))
    monkeypatch.setattr(updating, "clusters", lambda *given: found)
    run = SimpleNamespace(network=Network(), method=URRLMethod(Config(n_clusters=3)), history={"loss": [1]})
    kinds = [NewKind(np.array([18, 19]), {})]
    after, left = updating._founded(given, run, kinds, 4, None)
    assert seen == [(expected.tolist(), 4)]
    assert run.method.config.n_clusters == len(run.network.centers) == (4 if stays else 3)
    assert left == (kinds if stays else [])
    assert after.tolist() == ([*labels[:18], 3, 3, 1] if stays else labels.tolist())
    if not stays:
        assert run.network.centers.tolist() == [[0, 1], [2, 3], [4, 5]]
        assert (run.network.weight.item(), run.history) == (1, {"loss": [1]})


@pytest.mark.parametrize(("learned_after", "rounds"), [(1, 1), (3, 3), (9, 4)])
def test_new_clusters_are_trained_until_their_samples_are_in_them(monkeypatch, learned_after, rounds):
    """Two kinds of 20 and 30 samples: one sample in twenty may be elsewhere, two of twenty may not."""
    labels, trained = np.repeat([0, 1, 2], [400, 400, 50]), []
    known = np.repeat([0, 1, 3, 4], [400, 400, 20, 30])

    def found(*given):
        elsewhere = [800, 820] if len(trained) >= learned_after else [800, 801, 820]
        return torch.from_numpy(np.where(np.isin(np.arange(850), elsewhere), 0, known))

    monkeypatch.setattr(updating, "_train", lambda run, *more: trained.append(more[1]))
    monkeypatch.setattr(updating, "embed_stored", lambda run: torch.zeros(850, 2))
    monkeypatch.setattr(updating, "centers_of", lambda embedding, labels, count: torch.full((count, 2), 7.0))
    monkeypatch.setattr(updating, "clusters", found)
    run = SimpleNamespace(network=Network(), method=URRLMethod(Config(n_clusters=3)), history={})
    kinds = [NewKind(np.arange(800, 820), {}), NewKind(np.arange(820, 850), {})]
    assert updating._founded(enlarged(labels, [0] * 850, 800), run, kinds, 6, None)[1] == kinds
    assert trained == [6] * rounds


def test_new_samples_are_at_most_half_of_those_that_are_looked_at(monkeypatch):
    seen = {}

    def found(look, labels, novel, names, seed):
        seen.update(rows=look, labels=labels, novel=novel)
        return [NewKind(np.array([0, 2, 2499]), {})]

    monkeypatch.setattr(updating, "look_of", lambda run, rows: rows)
    monkeypatch.setattr(updating, "new_kinds", found)
    labels, novel = np.arange(6000) % 7, np.arange(6000) % 10 == 0
    model = SimpleNamespace(stored=None, names=["rna"])
    (kind,) = updating._new_kinds(enlarged(labels, novel, 3000, model=model), None, 5)
    rows = seen["rows"]
    assert np.array_equal(rows, np.unique(rows))
    late = novel | (np.arange(6000) >= 3000)
    assert (len(rows), late[rows].sum()) == (2500, 1250)
    assert np.array_equal(seen["labels"], labels[rows])
    assert np.array_equal(seen["novel"], novel[rows])
    assert kind.rows.tolist() == rows[[0, 2, 2499]].tolist()
    seen.clear()
    assert updating._new_kinds(enlarged(labels, np.arange(6000) < 7, 3000, model=model), None, 5) == []
    assert not seen  # seven novel samples are too few to look at
    assert updating._new_kinds(enlarged(labels, np.arange(6000) < 8, 3000, model=model), None, 5)


@dataclass(frozen=True)
class Calibration:
    again: np.ndarray
    shifts: np.ndarray


@dataclass(frozen=True)
class PlainModel:
    """What is judged of a model."""

    network: Module
    method: URRLMethod
    calibration: Calibration
    stored: object = None
    names: tuple = ()

    def assign(self, stored, embedding):
        return None


def test_old_clusters_are_worth_no_more_than_before_and_keep_their_shifts(monkeypatch):
    method, network = URRLMethod(Config(n_clusters=2)), Network()
    old, new = (
        Calibration(np.array([0.6, 0.8]), np.array([1.0, 2])),
        Calibration(np.array([0.9, 0.5, 0.7]), np.arange(3.0)),
    )
    given = enlarged([0, 1], [0, 0], 2, numbers=(0, 1), model=PlainModel(network, method, old))
    monkeypatch.setattr(updating, "embed_stored", lambda run: None)
    monkeypatch.setattr(updating, "clusters", lambda *given: torch.zeros(2))
    monkeypatch.setattr(updating, "calibrated", lambda model, *labels: PlainModel(model.network, model.method, new))
    monkeypatch.setattr(updating, "outliers", lambda *given: SimpleNamespace(chosen=[]))
    for name in ("mean_confidence", "trust_of"):
        monkeypatch.setattr(updating, name, lambda *given: None)
    monkeypatch.setattr(updating, "records", lambda *made: {})
    run = SimpleNamespace(network=network, method=method, history={}, seed=0, objective=0.0)
    model = updating._judged(given, run, np.zeros(2, dtype=np.int64), np.arange(2)).model
    assert model.calibration.again.tolist() == [0.6, 0.5, 0.7]
    assert model.calibration.shifts.tolist() == [1, 2, 2]
    assert model.method.config.n_clusters == 3


def test_centres_are_means_where_no_others_tell_clusters_apart(monkeypatch):
    monkeypatch.setattr(updating, "centers_of", lambda *given: None)
    embedding, old = torch.tensor([[1.0, 3], [3, 5], [8, 8]]), torch.tensor([[0.0, 0], [6, 7]])
    assert updating._centers(embedding, np.array([0, 0, 2]), old, 3).tolist() == [[2, 4], [6, 7], [8, 8]]


def test_what_became_of_samples_is_told_in_the_numbers_of_the_user():
    """Clusters 1 and 4 were there, and 5 is new; the second sample moved, the fourth waits."""
    given = enlarged([0, 0, 1, 0, 1], [0, 1, 0, 1, 0], 3, numbers=(1, 4), width=5)
    fitted = SimpleNamespace(labels=lambda: np.array([1, 5, 4, 1, 4]),
                             model=SimpleNamespace(method=SimpleNamespace(n_clusters=6)))  # fmt: skip
    kinds = {5: NewKind(np.array([1]), {"p_value": 0.01})}
    made = updating._decision(given, fitted, kinds, np.array(list("abcde")))
    assert (made.chosen, made.evidence) == (2, {"samples": 3, "stayed": pytest.approx(2 / 3)})
    assert made.moved == [("b", 1, 5)]
    assert made.founded == [{"label": 5, "size": 1, "p_value": 0.01}]
    assert (made.empty, made.waiting) == ([0, 2, 3], ["d"])


# --- new kinds
