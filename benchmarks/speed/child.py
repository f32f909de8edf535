"""A fit in a process of its own, whose peak memory nothing else has raised."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.reference.model import PlainModel
from viewfuse import URRL
from viewfuse.datasets import load_handwritten
from viewfuse.errors import EmptyClusterWarning, ViewfuseError
from viewfuse.methods.urrl.config import Config
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import apply_mask, paper_mask
from viewfuse.utils.memory import memory_now, memory_peak

WIDTHS = (64, 128, 32)
N_CLUSTERS = 10
WEIGHT = 0.1
"""Of the clustering loss: fixed, so that both do the same work."""
_MISSING = 0.3
_MEGABYTE = 1e6

T = TypeVar("T")
Data = tuple[list[NDArray[np.float32]], NDArray[np.int64]]


@dataclass(frozen=True)
class Fit:
    """A fit to be measured.

    Attributes
    ----------
    who : "ours" or "plain"
    n : samples of a mixture of Gaussians; None for Handwritten, half of whose samples lack four views
    epochs : of each stage
    """

    who: str
    n: int | None
    epochs: int | str
    device: str


def handwritten(seed: int = 0) -> Data:
    """Handwritten with the mask .5/4: rows of NaN where a view is missing, and the digits."""
    views, digits = load_handwritten()
    return apply_mask(views, paper_mask(len(digits), len(views), 0.5, 4, random_state=seed)), digits


def mixture(n: int, widths: Sequence[int] = WIDTHS, seed: int = 0) -> Data:
    """Samples of ten Gaussians, 30 % of whose views are missing but never all of one; and whose Gaussian is which."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(N_CLUSTERS, size=n)
    mask = rng.random((n, len(widths))) >= _MISSING
    mask[np.arange(n), rng.integers(len(widths), size=n)] |= ~mask.any(axis=1)
    views = []
    for v, width in enumerate(widths):
        centers = rng.normal(size=(N_CLUSTERS, width)).astype(np.float32)
        view = centers[labels] + 1.5 * rng.standard_normal((n, width), dtype=np.float32)
        view[~mask[:, v]] = np.nan
        views.append(view.astype(np.float32))
    return views, labels


def measured(fit: Fit) -> dict[str, Any]:
    """Seconds and memory of a fit in a new process; `failed` says why where there are none."""
    return in_child(run, fit)


def in_child(work: Callable[[Any], dict[str, Any]], job: Any) -> dict[str, Any]:
    """What `work` finds of `job` in a new process; `failed` says why where that is nothing."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(work, job).result()
        except (MemoryError, RuntimeError, ViewfuseError) as error:
            return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}


def run(fit: Fit) -> dict[str, Any]:
    """Fit, from arrays to labels, in this process."""
    data, truth = handwritten() if fit.n is None else mixture(fit.n)
    device = torch.device(fit.device)
    if device.type == "cuda":
        torch.zeros(1, device=device)  # the start of CUDA is no part of the fit
    labels, found = costs(lambda: _labels(fit, data, device))
    if device.type == "cuda":
        found["gpu_peak_mb"] = torch.cuda.max_memory_allocated(device) / _MEGABYTE
    return {**found, "accuracy": clustering_accuracy(truth, labels)}


def costs(work: Callable[[], T]) -> tuple[T, dict[str, float]]:
    """What `work` gives, and its seconds and memory in megabytes; the peak is that of the process so far."""
    before, began = memory_now(), time.perf_counter()
    given = work()
    seconds, peak = time.perf_counter() - began, memory_peak()
    return given, {"seconds": seconds, "peak_mb": peak, "more_than_before_mb": peak - before}


def _labels(fit: Fit, data: list[NDArray[np.float32]], device: torch.device) -> NDArray[np.int64]:
    config = Config(pretrain_epochs=fit.epochs, joint_epochs=fit.epochs, clustering_weight=WEIGHT)
    if fit.who == "plain":
        return PlainModel(data, replace(config, n_clusters=N_CLUSTERS), 0, device).labels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EmptyClusterWarning)  # few epochs leave some
        return URRL(N_CLUSTERS, config=config, scaling="minmax", device=fit.device, random_state=0).fit(data).labels_
