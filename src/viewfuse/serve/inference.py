"""The model that is served, and what a worker process does with one request: read the body, ask the model, answer."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, compress, pairwise
from pathlib import Path
from tempfile import gettempdir
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse import errors
from viewfuse.data.filling import warn_of_filled
from viewfuse.data.views import Views, stacked
from viewfuse.errors import DataError, MissingPackage, NotEnoughMemory, SettingError, ViewfuseError
from viewfuse.fitted.manifest import MANIFEST, checksum, read_manifest
from viewfuse.fitted.novelty import USUAL
from viewfuse.io.writers import Judged, as_json
from viewfuse.methods import load
from viewfuse.report.html import filled as filled_in
from viewfuse.report.page import run_page
from viewfuse.report.run_folder import read_run
from viewfuse.serve.bodies import JSON, TEMPORARY, read_json, read_parquet
from viewfuse.serve.limits import Busy, Limits, TooLarge, TooLong
from viewfuse.serve.worker import Facts, Message
from viewfuse.utils.jobs import chosen_device
from viewfuse.utils.settings import Setting, Spell, spelled

if TYPE_CHECKING:
    from viewfuse.methods.fitted_estimator import MultiViewClusterer

T = TypeVar("T")
INTERNAL_ERROR = "internal error; the log of the service has the details"
_STATUS = {TooLarge: 413, NotEnoughMemory: 413, DataError: 422, SettingError: 422, Busy: 503, TooLong: 504}
_BODY_PATH = re.compile(rf"{re.escape(gettempdir())}\S*{TEMPORARY}\w+/body\.parquet")
_MOST_LETTERS = 2000
"""Of a message: names in it come from the body, and may be as long as that."""
_log = logging.getLogger(__name__)
_BYTES_PER_NUMBER = 12
"""In JSON, about."""


@dataclass(frozen=True, eq=False)
class Opened:
    """A model that is ready."""

    fitted: MultiViewClusterer  # on the CPU; `settle` moves it
    device: str  # where it is asked
    facts: dict[str, Any]  # what /model says
    page: str  # the report of a run; of a model alone, a few words

    def settle(self) -> None:
        """Bring the model to its device, in the process that asks it."""
        self.fitted.device = self.device
        self.fitted._model = self.fitted._placed_model()


def open_folder(folder: Path, device: str, spell: Spell = str) -> Opened:
    """Open a model, or the folder of a run with the model inside."""
    is_run = (folder / "model" / MANIFEST).is_file() and not (folder / MANIFEST).exists()
    model = folder / "model" if is_run else folder
    if device == "auto":  # found without using it: a process that has used a GPU cannot fork
        device = "cuda:0" if torch.cuda.device_count() else "cpu"
    elif not device.startswith("cuda") or not torch.cuda.device_count():
        chosen_device(device)  # says what is wrong
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # in processes that are forked later, torch would wait for its threads for ever
    try:
        fitted = load(model, device="cpu")
    finally:
        torch.set_num_threads(n_threads)
    manifest = read_manifest(model)
    facts = {
        "method": manifest["method"]["name"],
        "clusters": len(fitted.cluster_centers_),
        "names": {str(label): name for label, name in fitted.cluster_names_.items()},
        "samples": len(fitted.ids_),
        "views": {
            str(view["name"]): plain_names(view.get("columns") or range(view["width"])) for view in manifest["views"]
        },
        "scaling": manifest.get("scaling"),
        "versions": manifest["versions"],
        "version": checksum(manifest)[:16],  # which tells one model from another
    }
    page = run_page(read_run(folder), spell=spell) if is_run else filled_in("model.html", **facts)
    return Opened(fitted, device, facts, page)


def plain_names(columns: Sequence[Any]) -> list[str | int]:
    """Names of columns as bodies give them."""
    return [column if isinstance(column, (str, int)) else str(column) for column in columns]


def reply(opened: Opened, limits: Limits, several: Sequence[Message]) -> list[Message]:
    """Per request status, number of samples and text of the answer to `facts["question"]` about those of its body."""
    judged = _judged_together(opened.fitted, limits, several) if len(several) > 1 else {}
    return [_reply(opened, limits, *one, judged.get(i)) for i, one in enumerate(several)]


def _judged_together(fitted: MultiViewClusterer, limits: Limits, several: Sequence[Message]) -> dict[int, Judged]:
    """What the model says of samples of several requests, by their places; without those that must ask alone.

    Those are all where there is anything to warn of: a warning may name samples, and is for one caller only.
    """

    def complete(body: bytes | bytearray) -> Views:
        return fitted.complete(read_json(body, limits, fitted.view_names_))[0].dense()

    views: dict[int, Views] = {}
    for i, (facts, body) in enumerate(several):
        if (facts["question"], facts["kind"]) == ("predict", JSON):
            with suppress(Exception):  # it is found again where the request is answered
                views[i] = _recorded(partial(complete, body))[0]
    try:
        judged, warned = _recorded(lambda: fitted.judge(stacked(list(views.values()))))
    except Exception:  # there is none, or each is asked alone, so that the fault of one is said to its caller only
        return {}
    ends = list(accumulate(map(len, views.values()), initial=0))
    parts = (Judged._make(said[first:last] for said in judged) for first, last in pairwise(ends))
    return {} if warned else dict(zip(views, parts, strict=True))


def _reply(
    opened: Opened, limits: Limits, facts: Facts, body: bytes | bytearray, judged: Judged | None = None
) -> Message:
    fitted, question = opened.fitted, QUESTIONS[facts["question"]]

    def answered() -> tuple[Facts, Facts]:
        if facts["kind"] == JSON:
            views = read_json(body, limits, fitted.view_names_)
        else:
            views = read_parquet(body, limits, fitted.view_names_, **facts["asked"])
        if question is not predict:
            return question(fitted, views, limits), {}
        found = predict(fitted, views, limits, judged)
        return found, _seen(found, views, fitted.view_names_)

    try:
        (found, seen), warned = _recorded(answered)
    except (ViewfuseError, MemoryError) as error:
        status, detail = status_and_detail(error)
    except Exception:
        _log.exception("a request failed")
        status, detail = 500, INTERNAL_ERROR
    else:
        text = as_json({**found, "model": opened.facts["version"], "warnings": warned})
        return {"status": 200, "rows": len(found["ids"]), "seen": seen}, text.encode()
    return {"status": status, "rows": 0}, as_json({"detail": detail}).encode()  # also letters that UTF-8 lacks


def status_and_detail(error: Exception) -> tuple[int, str]:
    """The HTTP status of an error, and its message for the caller."""
    if isinstance(error, MissingPackage):
        return 501, "this service cannot read Parquet, as it lacks a package; send JSON"
    if not isinstance(error, ViewfuseError):
        return 413, "the request does not fit into the memory of the service; send fewer samples"
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500), _for_callers(error)


def _for_callers(message: object) -> str:
    """An error or a warning for a caller: parameters as in the address, no path of this machine, not too long."""

    def in_address(setting: Setting) -> str | None:
        if setting.name == "blocks" and setting.value:
            return "&".join(f"block={view}={pattern}" for view, pattern in setting.value.items())
        return {"blocks": "block", "id_column": "id_column"}.get(setting.name)

    text = _BODY_PATH.sub("the body", spelled(message, in_address))
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ..."


def _seen(found: Facts, views: Views, known: Sequence[str]) -> Facts:
    """What /metrics counts of predictions: sums over samples, by label and by which views of the model are missing."""
    there = dict(zip(views.names, views.mask.T.tolist(), strict=True))
    lacks = [[not own for own in there[name]] if name in there else [True] * len(views) for name in known]
    return {
        "labels": Counter(map(str, found["labels"])),
        "missing": Counter(" ".join(compress(known, own)) for own in zip(*lacks, strict=True)),
        "novel": sum(one > USUAL for one in found["novelty"]),
        **{name: sum(found[name]) for name in ("confidence", "uncertain", "out_of_range")},
    }


def _recorded(work: Callable[[], T]) -> tuple[T, list[str]]:
    """What comes of some work, and what the package warned of meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    ours: dict[str, None] = {}
    for one in caught:
        if one.category.__module__ == errors.__name__:
            ours[_for_callers(one.message)] = None
        else:
            _log.warning("%s: %s", one.category.__name__, one.message)
    return result, list(ours)


def predict(fitted: MultiViewClusterer, views: Views, limits: Limits, judged: Judged | None = None) -> Facts:
    """The cluster of each sample, and how sure that is; `judged` is what the model says, where that is known."""
    limits.check_answer(_BYTES_PER_NUMBER * len(views) * len(fitted.cluster_centers_))
    complete, filled = fitted.complete(views)
    warn_of_filled(filled)
    judged = judged or fitted.judge(complete)
    return {
        "ids": views.ids.tolist(),
        "labels": judged.labels.tolist(),
        **_names(fitted, judged.labels),
        "confidence": _shortest(judged.chances.max(axis=1)),
        "uncertain": judged.uncertain.tolist(),
        "novelty": [round(one, 4) for one in judged.novelty.tolist()],
        "outlier": judged.outlier.tolist(),
        "out_of_range": judged.far.tolist(),
        "probabilities": [_shortest(row) for row in judged.chances],
        "filled_cells": {cells.view: cells.facts() for cells in filled},
    }


def impute(fitted: MultiViewClusterer, views: Views, limits: Limits) -> Facts:
    """All views of each sample, with what the model expects where one is missing."""
    complete, filled = fitted.complete(views)
    limits.check_answer(_BYTES_PER_NUMBER * len(complete) * sum(complete.widths))
    warn_of_filled(filled)
    whole = fitted.impute(complete)
    return {
        "ids": views.ids.tolist(),
        "views": {
            name: {
                "columns": plain_names(columns),
                "values": [_shortest(row) for row in array],
                "imputed": (~complete.mask[:, v]).tolist(),
            }
            for v, (name, columns, array) in enumerate(zip(whole.names, whole.columns, whole.arrays, strict=True))
        },
        "filled_cells": {cells.view: cells.facts() for cells in filled},
    }


def explain(fitted: MultiViewClusterer, views: Views, limits: Limits) -> Facts:
    """Why each sample is where it is: the second-best cluster, the weights of its views, who stands in for them."""
    found = fitted.explain(views)
    return {
        "ids": found.ids.tolist(),
        "labels": found.labels.tolist(),
        **_names(fitted, found.labels),
        "confidence": _shortest(found.confidence),
        "second_labels": found.second_labels.tolist(),
        "second_confidence": _shortest(found.second_confidence),
        "weights": {name: _shortest(found.weights[:, v]) for v, name in enumerate(found.view_names)},
        "donors": {name: [list(ids) for ids in found.donors[:, v]] for v, name in enumerate(found.view_names)},
    }


def _names(fitted: MultiViewClusterer, labels: NDArray[np.int64]) -> Facts:
    """Per sample the name of its cluster, None where it has none; nothing where no cluster has a name."""
    known = fitted.cluster_names_
    return {"names": [known.get(label) for label in labels.tolist()]} if known else {}


QUESTIONS: Mapping[str, Callable[..., Facts]] = {"predict": predict, "impute": impute, "explain": explain}


def _shortest(values: NDArray[np.float32]) -> list[float]:
    """Numbers with as few digits as tell them from other float32 numbers: 0.1, and not 0.10000000149011612."""
    return [float(str(value)) for value in values]
