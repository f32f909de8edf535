"""New samples join a fitted model: its clusters keep their numbers, and new kinds of samples get new ones.

What fills, reduces and scales stays, but for words that no fitted sample has. The joint stage continues for a part of
its epochs. The clusters that old samples had are hints, and old samples keep their neighbours; the training counts as
far as nearly all of them stay. Then `new_kinds` looks for clusters among the samples that fit nowhere.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter

from viewfuse.data.alignment import as_labels, check_written, checked_ids, read_alike, shown
from viewfuse.data.filling import EmptyCells, warn_of_filled
from viewfuse.data.input_types import only_counted
from viewfuse.data.side_information.knowledge import Guidance, Knowledge
from viewfuse.data.side_information.known_labels import UNKNOWN
from viewfuse.data.views import Views
from viewfuse.engine.replicates import clusters, replicate_seeds
from viewfuse.engine.training import Training, TrainState, check_diverged
from viewfuse.errors import DataError, IgnoredColumnsWarning, SuspiciousDataWarning
from viewfuse.fitted.clusters import representatives
from viewfuse.fitted.drift import other_kinds, warn_of_other_units
from viewfuse.fitted.model import Model, warn_of_far
from viewfuse.fitted.novelty import USUAL
from viewfuse.methods.label_matching import of_number, with_clusters, with_numbers
from viewfuse.methods.number_of_clusters import NewKind, look_of, new_kinds
from viewfuse.methods.urrl.fit import Fitted, calibrated, trust_of
from viewfuse.methods.urrl.losses_and_augmentation import dropout_of
from viewfuse.methods.urrl.stages import embed_stored, joint_stage
from viewfuse.neighbors.index import RowIndex, Samples, index_training_set
from viewfuse.nn.layers import with_gradients
from viewfuse.reduction.reduce import Reduction, with_new_words
from viewfuse.selection.confidence import mean_confidence
from viewfuse.selection.decision_texts import records, restored
from viewfuse.selection.decisions import JointStageLength, Update
from viewfuse.selection.linkage import centers_of
from viewfuse.selection.rules import clustering_weight, outliers
from viewfuse.selection.split_evidence import LEAST
from viewfuse.utils.console import warn


class Enlarged(NamedTuple):
    """A model with new samples among those that it knows, before it is trained on them."""

    model: Model
    numbers: NDArray[np.int64]  # those of the model's clusters, which are numbered without gaps here
    labels: NDArray[np.int64]  # clusters of the samples, without gaps; of new ones, where the model places them
    novel: NDArray[np.bool_]  # samples that fit nowhere, new ones and those that waited
    n_old: int
    width: int  # how many numbers the clusters had

    @classmethod
    def of(cls, model: Model, labels: NDArray[np.int64], waiting: NDArray[np.bool_], views: Views) -> Enlarged:
        """Let complete samples join old ones with these labels, of which some wait for a cluster of their own."""
        new, embedding = model.place(views)
        warn_of_far(views.ids[model.is_far(new.values, new.present)], len(views))
        warn_of_other_units(model, views, new)
        placed = clusters(model.method, model.network, embedding).cpu().numpy()
        words = model.unseen_words(views)
        novel = _novel(model, new, words, waiting)
        late, known_rows = novel[len(labels) :], model.stored.present.cpu().numpy() & ~waiting[:, None]
        if late.sum() >= LEAST:
            # New words of novel samples. Those of the fit have none of them, nor, as it seems, those that joined since.
            front_ends = []
            for v, front_end in enumerate(model.reduction.front_ends):
                known = model.scaler.undo(v, model.stored.values[v].cpu().numpy()[known_rows[:, v]])
                front_ends.append(with_new_words(front_end, views.arrays[v], late & views.mask[:, v], known))
            model = replace(model, reduction=Reduction(tuple(front_ends)))
            new = model.locate(*model.tensors(views))
        values = [torch.cat(pair) for pair in zip(model.stored.values, new.values, strict=True)]
        present = torch.cat([model.stored.present, new.present])
        stored = _with_former_neighbors(index_training_set(values, present, model.method.neighbor_depth), model)
        numbers = np.flatnonzero(model.in_use)
        joined = replace(with_clusters(model, numbers), stored=stored, left_out=model.left_out.joined_by(words))
        own = np.searchsorted(numbers, np.concatenate([labels, placed]))
        return cls(joined, numbers, own, novel, len(labels), model.method.n_clusters)

    def settled(self) -> NDArray[np.int64]:
        """Of shape (samples,): the clusters of old samples that do not wait, else -1."""
        is_old = np.arange(len(self.labels)) < self.n_old
        return np.where(is_old & ~self.novel, self.labels, UNKNOWN)


def _with_former_neighbors(stored: Samples, model: Model) -> Samples:
    """Samples of which the first are those of a model, and keep their neighbours; equal samples have the same."""
    neighbor_ids = torch.cat([model.stored.neighbor_ids, stored.neighbor_ids[len(model.stored) :]])
    first = RowIndex(stored.values, stored.present).find(stored.values, stored.present)
    return replace(stored, neighbor_ids=neighbor_ids[first])


def _novel(model: Model, new: Samples, words: NDArray[np.float64], waiting: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which samples, old ones and then new ones, fit nowhere among the old ones that do not wait."""
    known, later = model, [new]
    if waiting.any():
        known = model.thinned(np.flatnonzero(~waiting))
        own = model.stored.take(torch.from_numpy(np.flatnonzero(waiting)).to(model.stored.present.device))
        later, words = [own, new], np.concatenate([model.left_out.words[waiting], words])
    values = [torch.cat(views) for views in zip(*(one.values for one in later), strict=True)]
    samples = known.locate(values, torch.cat([one.present for one in later]))
    found = known.surroundings.novelty(samples, known.known_rows(samples), words) > USUAL
    before = np.zeros(len(waiting), dtype=bool)
    before[waiting] = found[: waiting.sum()]
    return np.concatenate([before, found[waiting.sum() :]])


_CORESET, _PER_NEW = 2_000, 4
"""Old samples that are trained on beside the new ones: as many, or four for each new one, where that is more."""
_LEARNED = 0.95
"""Of the samples whose clusters are known must be in these after new ones were learned; else there are no new ones."""


@with_gradients
def trained_on(
    given: Enlarged, ids: NDArray[Any], seed: int, history: Mapping[str, Any], decisions: Mapping[str, Any]
) -> Fitted:
    """Train a model on all of its samples, of these ids; `history` and `decisions` are those of its fit."""
    model, width, labels = given.model, given.width, given.labels
    run = TrainState(model.network, model.stored, seed, model.method, _loss_numbers(model, history, decisions))
    run.history = {name: list(values) for name, values in history.items()}
    run.known = Guidance.of(Knowledge.from_records(decisions, ids), run.device)
    epochs, rows = _plan(given)
    before = copy.deepcopy(run.network.state_dict())
    _train(run, given.settled(), epochs[0], rows)
    _hold_back(run, before, given.settled())
    kinds = _new_kinds(given, run, seed)
    if kinds:
        labels, kinds = _founded(given, run, kinds, epochs[1], rows)
    fitted = _judged(given, run, labels, ids)
    numbers = np.concatenate([given.numbers, width + np.arange(len(kinds))])
    fitted = with_numbers(fitted, numbers, width + len(kinds))
    made = _decision(given, fitted, {width + place: kind for place, kind in enumerate(kinds)}, ids)
    return fitted._replace(decisions={**decisions, **fitted.decisions, **records(made)})


def _loss_numbers(model: Model, history: Mapping[str, Any], decisions: Mapping[str, Any]) -> dict[str, float]:
    config = model.method.config
    known = decisions.get(JointStageLength.name, {}).get("evidence", {}).get("clustering_weight")
    usual = clustering_weight(float(history["reconstruction"][-1]) if history.get("reconstruction") else None)
    weight = usual if known is None else float(known)
    return {"view_dropout": dropout_of(config, model.stored.present), "clustering_weight": weight}


def _plan(given: Enlarged) -> tuple[list[int], Tensor]:
    """Epochs, an eighth of a fit's joint stage and a quarter for new clusters, and the rows trained on, (1, rows)."""
    stored, n_new = given.model.stored, len(given.labels) - given.n_old
    old = slice(0, given.n_old)
    keep = min(given.n_old, max(_CORESET, _PER_NEW * n_new))
    some = representatives(given.labels[old], stored.present[old].cpu().numpy(), keep)
    rows = np.concatenate([some, np.arange(given.n_old, len(given.labels))])
    epochs = given.model.method.config.epochs(len(rows)).joint
    at = torch.from_numpy(rows).to(stored.present.device)[None]
    return [ceil(epochs / 8), ceil(epochs / 4)], at


def _train(run: TrainState, known: NDArray[np.int64], epochs: int, rows: Tensor) -> None:
    """Continue the joint stage; `known` are clusters that samples should be in, of shape (samples,).

    The rate is at most that of a small set's joint stage, the largest of any fit: a set that has grown beyond a small
    one would have the rate of small sets and the factor of large ones.
    """
    run.known = replace(run.known, classes=torch.from_numpy(known).to(run.device), doubted=None)
    run.method = replace(run.method, hint_weight=3.0)  # with 1 a new cluster may be lost again
    training = Training([run])
    stage = joint_stage(training, epochs)
    training.run(replace(stage, name="update", elements=rows, rate=min(stage.rate, 1.8e-3)))
    check_diverged([run])


def _hold_back(run: TrainState, before: Mapping[str, Tensor], known: NDArray[np.int64]) -> None:
    """Go from former weights towards those of the network only as far as samples stay; else to where the most do.

    Of the samples whose clusters are known half a percent may move.
    """
    after, at, shares = copy.deepcopy(run.network.state_dict()), known != UNKNOWN, dict[float, float]()

    def go(step: float) -> None:
        run.network.load_state_dict({name: torch.lerp(own, after[name], step) for name, own in before.items()})

    for step in (1.0, 0.75, 0.5, 0.25, 0.0):
        go(step)
        found = clusters(run.method, run.network, embed_stored(run)).cpu().numpy()
        shares[step] = float((found == known)[at].mean()) if at.any() else 1.0
        if shares[step] >= 0.995:
            return
    go(max(shares, key=lambda step: shares[step]))


def _new_kinds(given: Enlarged, run: TrainState, seed: int) -> list[NewKind]:
    """New kinds of samples, among the novel ones and others: 2,500 are enough, at most half of them new."""
    if given.novel.sum() < LEAST:
        return []
    n = len(given.labels)
    draws = np.random.default_rng([seed, 6])
    is_late = given.novel | (np.arange(n) >= given.n_old)
    late = draws.permutation(np.flatnonzero(is_late))[:1_250]
    early = draws.permutation(np.flatnonzero(~is_late))[: 2_500 - len(late)]
    rows = np.sort(np.concatenate([late, early]))
    found = new_kinds(look_of(run, rows), given.labels[rows], given.novel[rows], given.model.names, seed)
    return [kind._replace(rows=rows[kind.rows]) for kind in found]


def _founded(
    given: Enlarged, run: TrainState, kinds: list[NewKind], epochs: int, rows: Tensor
) -> tuple[NDArray[np.int64], list[NewKind]]:
    """Train with new clusters; the labels before, and the clusters: none where old samples would not stay in theirs."""
    weights, history = copy.deepcopy((run.network.state_dict(), run.history))
    labels, known = given.labels.copy(), given.settled()
    for number, kind in enumerate(kinds, start=len(given.numbers)):
        labels[kind.rows] = known[kind.rows] = number
    count, embedding = len(given.numbers) + len(kinds), embed_stored(run)
    _set_centers(run, _centers(embedding, labels, run.network.centers.detach(), count))
    for _ in range(4):  # a new cluster is far from where a network put its samples, and a small network learns slowly
        _train(run, known, epochs, rows)
        found = clusters(run.method, run.network, embed_stored(run)).cpu().numpy()
        if all((found == known)[kind.rows].mean() >= _LEARNED for kind in kinds):
            break
    if (found == known)[known != UNKNOWN].mean() >= _LEARNED:
        return labels, kinds
    _set_centers(run, weights["centers"])
    run.network.load_state_dict(weights)
    run.history = history
    return given.labels, []


def _centers(embedding: Tensor, labels: NDArray[np.int64], old: Tensor, count: int) -> Tensor:
    """Centres whose nearest samples are those of each cluster; where there are none, means; old ones of empty ones."""
    centers = centers_of(embedding, labels, count)
    if centers is None:
        centers = torch.cat([old, old.new_zeros(count - len(old), old.shape[1])])
        for label in np.unique(labels).tolist():
            centers[label] = embedding[torch.from_numpy(labels == label).to(embedding.device)].mean(dim=0)
    return centers


def _set_centers(run: TrainState, centers: Tensor) -> None:
    run.network.centers, run.method = Parameter(centers.clone()), of_number(run.method, len(centers))


def _judged(given: Enlarged, run: TrainState, before: NDArray[np.int64], ids: NDArray[Any]) -> Fitted:
    """The trained model, with what its clusters are worth; `before` are those before the training."""
    embedding, old = embed_stored(run), given.model.calibration
    method = of_number(run.method, len(run.network.centers))
    model = replace(given.model, network=run.network, method=method)
    if old is not None:
        model = calibrated(model, embedding, clusters(run.method, run.network, embedding).cpu().numpy(), [before])
        known = model.calibration
        assert known is not None
        again, shifts, count = known.again.copy(), known.shifts.copy(), len(given.numbers)
        again[:count], shifts[:count] = np.minimum(again[:count], old.again), old.shifts
        model = replace(model, calibration=replace(known, again=again, shifts=shifts))
    soft, far = model.assign(model.stored, embedding), outliers(model.stored, model.names, ids)
    made = [mean_confidence(soft, model.calibration), *([far] if far.chosen else [])]
    made += [] if old is None else [trust_of(model, soft, far.chosen)]
    return Fitted(model, embedding, run.history, [run.objective], records(*made))


def _decision(given: Enlarged, fitted: Fitted, kinds: Mapping[int, NewKind], ids: NDArray[Any]) -> Update:
    """What became of the samples; labels are numbers as the user sees them."""
    labels, old = fitted.labels(), given.numbers[given.labels[: given.n_old]]
    names, moved = [str(name) for name in ids.tolist()], np.flatnonzero(labels[: given.n_old] != old)
    sizes = np.bincount(labels, minlength=fitted.model.method.n_clusters)
    waiting = np.flatnonzero(given.novel & ~np.isin(labels, list(kinds)))
    return Update(
        len(labels) - given.n_old,
        {"samples": given.n_old, "stayed": 1.0 - len(moved) / given.n_old},
        moved=[(names[row], int(old[row]), int(labels[row])) for row in moved.tolist()],
        founded=[{"label": label, "size": int(sizes[label]), **kind.facts} for label, kind in kinds.items()],
        empty=np.flatnonzero(sizes == 0).tolist(),
        waiting=[names[row] for row in waiting.tolist()],
    )


class Updatable:
    """What lets new samples join a fitted estimator."""

    def update(self: Any, X: Any) -> Update:
        """Let new samples join those of training, and train on for a few epochs.

        Clusters keep their numbers and names. Samples that fit nowhere may found clusters, with new numbers. Where
        anything fails, the model stays as it was.

        Parameters
        ----------
        X : as for `fit`, with the same columns; ids must be new ones, and continue the count where they only count rows

        Returns
        -------
        Update
            Which old samples moved from where to where, and which clusters are new or empty; also in
            ``decisions_["update"]``.
        """
        views = _same_columns(self.complete, X)
        ids = joined_ids(self.ids_, views.ids)
        for fault in other_kinds(self._model, views):  # the model would learn them as a new kind of samples
            raise DataError(f"{fault}; give counts or logarithms as it had them, or fit again")
        waiting = set(self.decisions_.get(Update.name, {}).get("waiting", ()))
        is_waiting = np.array([str(name) in waiting for name in self.ids_.tolist()])
        given = Enlarged.of(self._placed_model(), self._clusters(), is_waiting, views)
        seed = replicate_seeds(self.random_state, 1)[0]
        fitted = trained_on(given, ids, seed, self.history_, self.decisions_)
        self.ids_ = ids
        self._take_over(*fitted)
        made = restored(self.decisions_)[Update.name]
        assert isinstance(made, Update)
        return made


def joined_ids(old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """The ids of old and new samples, none of which is there twice; where both only count rows, counting continues."""
    if only_counted(old) and only_counted(new):
        return np.arange(len(old) + len(new))
    if only_counted(new) and old.dtype.kind not in "iu":
        what = f"the new samples have no ids but row numbers, those of the model have ids such as {old.tolist()[0]!r}"
        raise DataError(f"{what}; give the new ones ids, too: a data frame with these as index")
    cure = "leave out the samples that the model has, or give the others ids of their own"
    known = set(old.tolist())
    twice = [name for name in new.tolist() if name in known]
    if twice:
        more = f" and {len(twice) - 1:,} more are" if len(twice) > 1 else " is"
        raise DataError(f"id {twice[0]!r}{more} among the training samples already; {cure}")
    found = checked_ids([*old.tolist(), *new.tolist()], len(old) + len(new))
    check_written(found)
    if alike := read_alike(old.tolist(), new.tolist()):
        fault = f"{len(alike):,} of the new ids differ from ids of training samples only in how they are written"
        such = f"such as {shown(alike[0][1])} from {shown(alike[0][0])}"
        warn(SuspiciousDataWarning(f"{fault}, {such}; if these are the same samples, leave out the new ones"))
    return found if only_counted(old) else as_labels(found)


def _same_columns(complete: Callable[[Any], tuple[Views, list[EmptyCells]]], X: Any) -> Views:
    """New samples as the model takes them; columns that are new or lost are refused."""
    cure = "give the columns that the model was fitted on, or fit again"
    with warnings.catch_warnings():
        warnings.simplefilter("error", IgnoredColumnsWarning)
        try:
            views, empty = complete(X)
        except IgnoredColumnsWarning as error:
            fault = str(error).partition(": ")[2]
            raise DataError(f"the columns are not those of the model: {fault}; {cure}") from None
    for cells in empty:
        lost = [name for name, count in zip(cells.columns, cells.counts.tolist(), strict=True) if count == cells.n_rows]
        if lost:
            raise DataError(f"view {cells.view!r} has no value in {len(lost):,} columns, such as {lost[0]!r}; {cure}")
    warn_of_filled(empty)
    return views
