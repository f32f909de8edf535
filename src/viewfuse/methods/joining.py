"""The estimator's `update`: which samples may join, and what the user gets."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.alignment import check_written, checked_ids, only_counted
from viewfuse.data.filling import EmptyCells, warn_of_filled
from viewfuse.data.views import Views
from viewfuse.engine.batches import replicate_seeds
from viewfuse.errors import DataError, IgnoredColumnsWarning
from viewfuse.fitted.model import Model
from viewfuse.methods.updating import Enlarged, trained_on
from viewfuse.selection.decisions import Update
from viewfuse.selection.messages import restored


class Updatable:
    """What lets new samples join a fitted estimator."""

    _model: Model
    ids_: NDArray[Any]
    history_: dict[str, list[Any]]
    decisions_: dict[str, dict[str, Any]]
    random_state: Any
    complete: Callable[..., tuple[Views, list[EmptyCells]]]
    _placed_model: Callable[[], Model]
    _clusters: Callable[[], NDArray[np.int64]]
    _take_over: Callable[..., None]

    def update(self, X: Any) -> Update:
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
        waiting = set(self.decisions_.get(Update.name, {}).get("waiting", ()))
        is_waiting = np.array([str(name) in waiting for name in self.ids_.tolist()])
        given = Enlarged.of(self._placed_model(), self._clusters(), is_waiting, views)
        seed = replicate_seeds(self.random_state, 1)[0]
        fitted = trained_on(given, ids, seed, self.history_, self.decisions_)
        self.ids_ = ids
        self._take_over(fitted.model, fitted.embedding, fitted.history, fitted.objectives, fitted.decisions)
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
    known = set(old.tolist())
    twice = [name for name in new.tolist() if name in known]
    if twice:
        more = f" and {len(twice) - 1:,} more are" if len(twice) > 1 else " is"
        cure = "leave out the samples that the model has, or give the others ids of their own"
        raise DataError(f"id {twice[0]!r}{more} among the training samples already; {cure}")
    found = checked_ids([*old.tolist(), *new.tolist()], len(old) + len(new))
    check_written(found)
    return found


def _same_columns(complete: Callable[[Any], tuple[Views, list[EmptyCells]]], X: Any) -> Views:
    """New samples as the model takes them; columns that are new or lost are refused."""
    cure = "give the columns that the model was fitted on, or fit again"
    with warnings.catch_warnings():
        warnings.simplefilter("error", IgnoredColumnsWarning)
        try:
            views, empty = complete(X)
        except IgnoredColumnsWarning as error:
            raise DataError(
                f"the columns are not those of the model: {str(error).partition(': ')[2]}; {cure}"
            ) from None
    for cells in empty:
        lost = [name for name, count in zip(cells.columns, cells.counts.tolist(), strict=True) if count == cells.n_rows]
        if lost:
            raise DataError(f"view {cells.view!r} has no value in {len(lost):,} columns, such as {lost[0]!r}; {cure}")
    warn_of_filled(empty)
    return views
