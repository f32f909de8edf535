"""How fast the package is, beside the plain reference in the same run, and beside the floor."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from benchmarks import machine
from benchmarks.reference.data import ScaledTable
from benchmarks.reference.model import PlainModel, PlainTraining
from benchmarks.speed import roofline
from benchmarks.speed.adapter import OurTraining, losses_of_both, scaled_table
from benchmarks.speed.child import N_CLUSTERS, WEIGHT, Fit, handwritten, measured, mixture
from benchmarks.speed.wide import WideSize, measure_wide
from viewfuse import URRL
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import TERMS
from viewfuse.metrics import clustering_accuracy
from viewfuse.neighbors.index import MultiViewIndex

Facts = dict[str, Any]
Training = OurTraining | PlainTraining
TARGET = 0.95
_NEIGHBOR_COLUMNS = 64
_NEIGHBORS = 9
"""As many as the package keeps of every sample by default."""


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Attributes
    ----------
    every : only every so many-th sample of Handwritten is used
    portions : how often each timing is repeated; the median counts
    neighbor_counts : samples of each neighbour search
    scaling_counts : samples of each fit of the scaling curve
    most_plain : more samples than these are not given to the plain reference
    epochs : of each stage of a fit of the scaling curve
    seeds, most_epochs : of the trainings up to a fixed accuracy, most epochs of each stage; no seeds skip them
    side, floats : of the matrices and copies that measure the machine; by default chosen by the device
    wide : of wide and sparse views
    """

    every: int = 1
    portions: int = 4
    neighbor_counts: tuple[int, ...] = (2_000, 5_000, 20_000)
    scaling_counts: tuple[int, ...] = (1_000, 10_000)
    most_plain: int = 1_000
    epochs: int | str = 1
    seeds: tuple[int, ...] = ()
    most_epochs: int | str = "auto"
    side: int | None = None
    floats: int | None = None
    wide: WideSize = field(default_factory=WideSize)


FULL = Size(
    portions=9,
    scaling_counts=(1_000, 10_000, 100_000, 1_000_000),
    most_plain=10_000,
    epochs="auto",
    seeds=(0, 1, 2),
    wide=WideSize(sparse_rows=100_000),
)


def measure(device: torch.device, size: Size, command: str = "", log: Callable[[str], None] = lambda _: None) -> Facts:
    """Everything, as a dict that JSON can hold; `log` is called with what is being measured."""
    parts: dict[str, Callable[[], Any]] = {
        "training": lambda: training_speed(device, size),
        "default_fit": lambda: default_fit(device, size),
        "accuracy": lambda: seconds_to_accuracy(device, size) if size.seeds else None,
        "memory": lambda: peak_memory(device),
        "neighbors": lambda: [neighbor_search(n, device, size.portions) for n in size.neighbor_counts],
        "predict": lambda: predict_speed(device, size),
        "scaling": lambda: [scaling_point(n, device, size) for n in size.scaling_counts],
        "wide": lambda: measure_wide(device, size.wide),
    }
    found: Facts = {"machine": machine.facts(device, command)}
    for name, part in parts.items():
        log(name)
        found[name] = part()
    log("floor")
    found["floor"] = step_floor(device, size, found["training"]["ours"]["steps_per_second"])
    return found


def interleaved(
    jobs: Mapping[str, Callable[[], object]], portions: int, device: torch.device
) -> dict[str, list[float]]:
    """Seconds of every portion of each job; the jobs take turns, so that a busy moment of the machine hits all."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()  # libraries set themselves up in the first call
    for _ in range(portions):
        for name, job in jobs.items():
            times[name].append(machine.seconds(job, device))
    return times


def training_speed(device: torch.device, size: Size) -> Facts:
    """Steps of the joint stage per second, on Handwritten with the mask .5/4."""
    table = _handwritten_table(size)
    settings = Config(n_clusters=N_CLUSTERS, clustering_weight=WEIGHT).sized(len(table))
    counts = (1, 10) if device.type == "cuda" else (1,)
    ours = {n: OurTraining(table, settings, 0, device, n) for n in counts}
    plain = PlainTraining(table, settings, 0, device)
    runs: dict[str, Training] = {**{_name(n): run for n, run in ours.items()}, "plain": plain}
    for run in runs.values():
        run.begin_joint_stage()
    times = interleaved(
        {name: _epoch(run) for name, run in runs.items()} | {"loader": lambda: list(plain.loader)},
        size.portions,
        device,
    )
    steps = len(plain.loader)
    found: Facts = {_name(n): _rates(times[_name(n)], steps * n) for n in counts}
    found["plain"] = _rates(times["plain"], steps)
    found["plain"]["share_of_data_loader"] = median(times["loader"]) / median(times["plain"])
    found["ratio"] = found["ours"]["steps_per_second"] / found["plain"]["steps_per_second"]
    return {**found, "batch_size": settings.batch_size, "losses_of_one_batch": _compared(ours[1], settings)}


def default_fit(device: torch.device, size: Size) -> Facts:
    """A fit of Handwritten with the mask .5/4 and all defaults, from arrays to labels; also in steps of the plain one.

    Epochs of the plain reference are timed before and after it.
    """
    settings = Config(n_clusters=N_CLUSTERS, clustering_weight=WEIGHT)
    views, digits = ([view[:: size.every] for view in handwritten()[0]], handwritten()[1][:: size.every])
    plain, model = PlainTraining(_handwritten_table(size), settings, 0, device), URRL(N_CLUSTERS, random_state=0)
    plain.begin_joint_stage()
    epochs = [machine.seconds(_epoch(plain), device) for _ in range(2)][1:]  # the first one warms up
    seconds = machine.seconds(lambda: model.set_params(device=device.type).fit(views), device)
    epochs.append(machine.seconds(_epoch(plain), device))
    found = {"seconds": seconds, "plain_steps": seconds / median(epochs) * len(plain.loader)}
    steps = len(model.history_["epoch"]) * max(1, len(digits) // settings.batch_size)
    return {**found, "steps": steps, "accuracy": clustering_accuracy(digits, model.labels_)}


def _name(n_replicates: int) -> str:
    return "ours" if n_replicates == 1 else f"ours_{n_replicates}_replicates"


def _epoch(run: Training) -> Callable[[], object]:
    return lambda: run.run_epoch(0)


def _rates(times: Sequence[float], count: int) -> Facts:
    """Steps, of each network where there are several, per second: the median, the slowest and the fastest portion."""
    return {"steps_per_second": count / median(times), "slowest": count / max(times), "fastest": count / min(times)}


def _compared(run: OurTraining, settings: Config) -> Facts:
    """The losses of one batch by both, with the same weights."""
    rows = torch.linspace(0, len(run.stored) - 1, min(settings.batch_size, len(run.stored)), dtype=torch.int64)
    both = losses_of_both(run.runs[0].network, run.stored, rows.to(run.stored.present.device), settings)
    gaps = [abs(a - b) / max(abs(a), 1e-12) for a, b in zip(both["ours"], both["plain"], strict=True)]
    return {"terms": list(TERMS), **both, "largest_relative_difference": max(gaps)}


def _handwritten_table(size: Size, seed: int = 0) -> ScaledTable:
    return scaled_table([view[:: size.every] for view in handwritten(seed)[0]])


def seconds_to_accuracy(device: torch.device, size: Size, target: float = TARGET) -> Facts:
    """Seconds of training until the clusters match the digits so well, from scaled arrays on."""
    runs: dict[str, list[Facts]] = {"ours": [], "plain": []}
    epochs: dict[str, Any] = {"pretrain_epochs": size.most_epochs, "joint_epochs": size.most_epochs}
    settings = Config(n_clusters=N_CLUSTERS, clustering_weight=WEIGHT, **epochs)
    for seed in size.seeds:
        table, digits = _handwritten_table(size, seed), handwritten(seed)[1][:: size.every]
        for name, kind in (("ours", OurTraining), ("plain", PlainTraining)):
            runs[name].append(_until(partial(kind, table, settings, seed, device), digits, settings, device, target))
    found: Facts = {"target": target, "data": "Handwritten, mask .5/4", "seeds": list(size.seeds), "runs": runs}
    medians = [_median([run["seconds"] for run in runs[name] if run["reached"]]) for name in ("ours", "plain")]
    ratio = medians[1] / medians[0] if medians[0] and medians[1] else None
    return {**found, "ours_seconds": medians[0], "plain_seconds": medians[1], "ratio": ratio}


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _until(
    start: Callable[[], Training], digits: NDArray[np.int64], settings: Config, device: torch.device, target: float
) -> Facts:
    """Train until the target or the last epoch; the time of scoring is not counted."""
    first, second = settings.epochs(len(digits))
    began = time.perf_counter()
    run = start()
    for epoch in range(first):
        run.run_epoch(epoch)
    run.begin_joint_stage()
    spent, accuracy, epoch = time.perf_counter() - began, clustering_accuracy(digits, run.labels()), first
    while accuracy < target and epoch < first + second:
        spent += machine.seconds(partial(run.run_epoch, epoch), device)
        accuracy, epoch = clustering_accuracy(digits, run.labels()), epoch + 1
    return {"seconds": spent, "accuracy": accuracy, "epochs": epoch, "reached": accuracy >= target}


def peak_memory(device: torch.device) -> Facts:
    """Memory of a fit of Handwritten with one epoch per stage, each in a process of its own."""
    return {who: measured(Fit(who, None, 1, str(device))) for who in ("ours", "plain")}


def neighbor_search(n: int, device: torch.device, portions: int) -> Facts:
    """Nine neighbours of every one of `n` samples, by the package and by scikit-learn."""
    points = mixture(n, (_NEIGHBOR_COLUMNS,))[0][0]  # of a single view nothing is missing
    there, whole = torch.tensor(points, device=device), torch.ones(n, 1, dtype=torch.bool, device=device)
    found: dict[str, NDArray[np.int64]] = {}

    def ours() -> None:
        found["ours"] = MultiViewIndex([there], whole).neighbors_of_own(_NEIGHBORS)[:, 0].cpu().numpy()

    def plain() -> None:
        search = NearestNeighbors(n_neighbors=_NEIGHBORS).fit(points)
        found["plain"] = search.kneighbors(return_distance=False)

    times = interleaved({"ours": ours, "plain": plain}, min(2, portions), device)
    seconds = {f"{name}_seconds": median(portion) for name, portion in times.items()}
    agree = float((found["ours"] == found["plain"]).mean())
    ratio = seconds["plain_seconds"] / seconds["ours_seconds"]
    return {"n": n, "columns": _NEIGHBOR_COLUMNS, **seconds, "ratio": ratio, "same_neighbors": agree}


def predict_speed(device: torch.device, size: Size) -> Facts:
    """Rows per second of many new samples, and milliseconds of a single one; the models were hardly trained."""
    views = [view[:: size.every] for view in handwritten()[0]]
    old, new = [view[::2] for view in views], [view[1::2] for view in views]
    ours = URRL(
        N_CLUSTERS,
        config=Config(pretrain_epochs=1, joint_epochs=0),
        scaling="minmax",
        random_state=0,
        device=str(device),
    ).fit(old)
    settings = Config(n_clusters=N_CLUSTERS, pretrain_epochs=1, joint_epochs=0, clustering_weight=WEIGHT)
    plain = PlainModel(old, settings, 0, device)
    single = [view[:1] for view in new]
    many = interleaved({"ours": lambda: ours.predict(new), "plain": lambda: plain.predict(new)}, size.portions, device)
    one = interleaved(
        {"ours": lambda: ours.predict(single), "plain": lambda: plain.predict(single)}, 6 * size.portions, device
    )
    rows = {f"{name}_rows_per_second": len(new[0]) / median(times) for name, times in many.items()}
    wait = {f"{name}_latency_ms": 1e3 * median(times) for name, times in one.items()}
    ratios = {
        "throughput_ratio": median(many["plain"]) / median(many["ours"]),
        "latency_ratio": median(one["plain"]) / median(one["ours"]),
    }
    return {"stored": len(old[0]), "rows": len(new[0]), **rows, **wait, **ratios}


def scaling_point(n: int, device: torch.device, size: Size) -> Facts:
    """A fit of `n` samples from arrays to labels, each in a process of its own."""
    asked = ("ours", "plain") if n <= size.most_plain else ("ours",)
    return {"n": n, "epochs": size.epochs, **{who: measured(Fit(who, n, size.epochs, str(device))) for who in asked}}


def step_floor(device: torch.device, size: Size, steps_per_second: float) -> Facts:
    """The least that a step of `training_speed` can take on this machine, and how far the package is from it."""
    table = _handwritten_table(size)
    peaks = machine.peaks(device, size.side, size.floats)
    counts = roofline.counted(
        [view.shape[1] for view in table.values], Config(n_clusters=N_CLUSTERS, clustering_weight=WEIGHT)
    )
    bound = roofline.lower_bound(counts, peaks)
    step = 1e3 / steps_per_second
    return {**peaks, **counts, **bound, "ours_ms": step, "times_the_floor": step / bound["floor_ms"]}
