"""URRL's schedule (Algorithm 2): pre-train, place the centres, train jointly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from viewfuse.data.side_information.knowledge import UNGUIDED, Guidance
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import clusters, embed, fixed_rows, generator_for_start, max_stacked, rows_for_all
from viewfuse.engine.training import SILENT, History, JointStage, Progress, Stage, Training, TrainState, check_diverged
from viewfuse.methods.urrl.config import Config, Epochs
from viewfuse.methods.urrl.hints import known_centers, pair_loss_of
from viewfuse.methods.urrl.losses_and_augmentation import PAIRS, TERMS, StepBatch, URRLMethod, dropout_of
from viewfuse.methods.urrl.network import build_network
from viewfuse.neighbors.index import NO_NEIGHBOR, Samples, index_training_set
from viewfuse.nn.layers import tensor_cores
from viewfuse.selection.decisions import JointStageLength, PretrainingLength
from viewfuse.selection.kmeans import initial_centers, paper_centers
from viewfuse.selection.rules import clustering_weight
from viewfuse.selection.scores import merits, size_entropy
from viewfuse.utils.jobs import limited, run_jobs, threads_for

_FALL = 0.05
_TIE = 0.003
_LESS_PURE = 0.05
_MERGED = 0.01
_PATIENCE = 3
_STILL = 0.0075
_EVALUATIONS = 8  # how often a joint stage is evaluated
_TIMED = 4  # steps that are made to measure how long one takes
_MOST_ROWS, _LEAST_ROWS = 4096, 64  # of a pass on a GPU, of all networks and of each


class EarlyStopping:
    """Looks after the joint stage of one network.

    Kept is the last state whose neighbour agreement is the best one, or less by `_TIE` at most: among equals the longer
    training is the better one. A state whose score (`viewfuse.selection.scores`), in which every cluster counts the
    same, is lower than before the stage by `_LESS_PURE` is not kept; nor is one whose score is lower at all while
    clusters were merged (the entropy of sizes is lower by `_MERGED`): merging alone raises the agreement. The stage is
    ended where losses are no longer finite, where clusters are emptied, where the agreement is lower than its best by
    `_FALL`, where `_PATIENCE` evaluations in a row gained less than `_TIE` together, and where a share of the samples
    below `_STILL` has changed its cluster since the last evaluation. The last two where it `settles`.

    Attributes
    ----------
    weights, labels : of the network that is kept so far; the clusters that were judged last, of shape (samples,)
    counters : the best agreement, that from which gains count, the most clusters, and evaluations since a gain
    """

    def __init__(
        self, method: Any, network: Any, neighbor_ids: Tensor, stage: JointStage, *, settles: bool = True,
        views: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        self._method, self._network, self._neighbor_ids, self._stage = method, network, neighbor_ids, stage
        # Without neighbours, or with one cluster, all clusters are equally good, and the last ones are kept.
        self._tells = method.n_clusters > 1 and bool((neighbor_ids != NO_NEIGHBOR).any())
        self._patience: float = _PATIENCE if settles else inf
        self._still = _STILL if settles and self._tells else 0.0
        self._views = views
        self.counters: dict[str, float] = {"best": -inf, "mark": -inf, "n_clusters": 0, "waited": 0}
        self.weights: dict[str, Tensor] = {}
        self.labels: Tensor | None = None

    def evaluate(self, epoch: int, embedding: Tensor, diverged: str = "") -> None:
        """Score the clusters of an embedding of the training samples, unless a loss diverged; see `judge`."""
        if self._stage.stopped:
            return
        self._stage.ended = diverged or broken_embedding(embedding, epoch)
        if not self._stage.ended:
            self.judge(epoch, clusters(self._method, self._network, embedding))

    def judge(self, epoch: int, labels: Tensor) -> None:
        """Score clusters that are known, of shape (samples,), and keep the network if they are as good as ever."""
        stage, seen, n_clusters = self._stage, self.counters, self._method.n_clusters
        merit = merits([labels], self._neighbor_ids, n_clusters, self._views)[0]
        score = stage.seen[epoch] = merit.agreement
        stage.score[epoch], stage.size_entropy[epoch] = merit.score, size_entropy(labels, n_clusters)
        found, most = int((labels.bincount() > 0).sum()), int(seen["n_clusters"])
        if found < most:
            stage.ended = f"{most - found} of {most} clusters were emptied"
        elif score < seen["best"] - _FALL:
            stage.ended = f"the neighbour agreement of the clusters fell from {seen['best']:.3f} to {score:.3f}"
        else:
            purer, more_even = (by[epoch] - next(iter(by.values())) for by in (stage.score, stage.size_entropy))
            lost = purer < -_LESS_PURE or (purer < 0 and more_even < -_MERGED)
            better = score > seen["best"] or not self._tells
            if not lost and (better or score >= seen["best"] - _TIE):
                stage.kept = epoch
                self.weights = {name: weights.clone() for name, weights in self._network.state_dict().items()}
            if better and not lost:
                seen["best"] = score
            if not lost and (score >= seen["mark"] + _TIE or not self._tells):
                seen["mark"], seen["waited"] = score, 0
            else:
                seen["waited"] += 1
            stage.settled = seen["waited"] >= self._patience
        seen["n_clusters"] = max(most, found)
        moved = 1.0 if self.labels is None else float((labels != self.labels).double().mean())
        stage.settled |= not stage.ended and moved < self._still
        self.labels = labels

    def restore_best(self) -> None:
        """Give the network the weights that were kept."""
        self._network.load_state_dict(self.weights)


def init_state(stored: Samples, config: Config, seed: int, known: Guidance = UNGUIDED) -> TrainState:
    """A network with the weights that its seed gives, for the samples and what is known of them, on their device."""
    config = config.sized(len(stored))
    method, widths = URRLMethod(config), [view.shape[1] for view in stored.values]
    network = build_network(widths, config, generator_for_start(seed)).to(stored.present.device)
    numbers = {"view_dropout": dropout_of(config, stored.present), "clustering_weight": 0.0}
    history: History = {name: [] for name in ("epoch", "stage", *TERMS, "total", "seconds")}
    return TrainState(network, stored, seed, method, numbers, known=known, history=history)


def pretrain(runs: Sequence[TrainState], until: int, **ways: Any) -> None:
    """The first stage up to an epoch, and the start of the cluster centres; `ways` are those of `_train`.

    Those that diverge say so in `diverged`. Trainings that went so far already stay as they are; those that continue
    from there begin with a new Adam.
    """
    waiting = [one for one in runs if one.clusters is None or one.n_epochs < until]
    name = "pre-training" if any(one.n_epochs < until for one in waiting) else ""
    _train(partial(_pretrained, until), waiting, name, **ways)


def _pretrained(
    until: int, group: Sequence[TrainState], progress: Progress, checkpoint: Checkpoint | None
) -> tuple[int, Sequence[TrainState]]:
    """The first stage of a group: the epochs that were shown, and the trainings."""
    before, training = progress.epochs, Training(group)
    training.run(pretraining_stage(training, until - group[0].n_epochs), progress, checkpoint)
    for run, embedding in zip(group, embed_all(training), strict=True):
        run.diverged = run.diverged or broken_embedding(embedding, run.n_epochs)
        if not run.diverged:
            _prepare_joint_stage(run, embedding)
    return progress.epochs - before, group


def train_jointly(runs: Sequence[TrainState], **ways: Any) -> None:
    """The second stage of trainings that have had the first, with equal configurations; `ways` are those of `_train`.

    Where the stage is watched, every training ends with the best clusters that it had.
    """
    _train(_trained_jointly, [run for run in runs if planned_epochs(run).joint], "joint training", **ways)


def _trained_jointly(
    group: Sequence[TrainState], progress: Progress, checkpoint: Checkpoint | None
) -> tuple[int, Sequence[TrainState]]:
    """The second stage of a group: the epochs that were shown, and the trainings."""
    before, training, config, watches = progress.epochs, Training(group), group[0].method.config, list[EarlyStopping]()
    for run in group if config.watched else ():
        ways: dict[str, Any] = {"settles": config.settles, "views": run.known.views}
        watches.append(EarlyStopping(run.method, run.network, run.stored.neighbor_ids, run.joint_stage, **ways))
        assert run.clusters is not None
        watches[-1].judge(run.n_epochs, run.clusters)
    training.run(joint_stage(training, planned_epochs(group[0]).joint, watches), progress, checkpoint)
    for watch in watches:
        watch.restore_best()
    if not watches:
        check_diverged(group)
        for run in group:
            run.joint_stage.kept = run.n_epochs
    return progress.epochs - before, group


def _train(
    work: Callable[..., tuple[int, Sequence[TrainState]]], runs: Sequence[TrainState], name: str, *,
    n_jobs: int | None = None, threads: int | None = None, progress: Progress = SILENT,
    checkpoint: Checkpoint | None = None,
) -> None:  # fmt: skip
    """Do a stage of all groups of trainings, and keep what was learned, also in other processes.

    `name` is empty where the stage has no epochs. See `viewfuse.utils.jobs.run_jobs` for `n_jobs` and `threads`.
    """
    groups, shown = list(stacked_groups(runs)), 0
    if name and groups:
        progress.begin(name if len(groups) == 1 else f"{name} of {len(groups)}")

    def keep(place: int, found: tuple[int, Sequence[TrainState]]) -> None:
        nonlocal shown
        for run, learned in zip(groups[place], found[1], strict=True):
            if learned is not run:  # it comes from another process
                run.take_over(learned)
        shown += found[0]
        progress.reach(shown, groups[place][0].objective)

    run_jobs(work, [(group, progress, checkpoint) for group in groups], n_jobs, threads=threads, done=keep)


def pretraining_stage(training: Training, epochs: int) -> Stage:
    """Reconstruction and robustness; the centres are not trained."""
    config, network = training.runs[0].method.config, training.network
    weights = [one for one in network.parameters() if one is not network.centers]
    steps = epochs, config.batch_size, config.rate, loss_of(training, joint=False)
    return Stage("pre-training", *steps, last="drop short", weight_decay=config.weight_decay, weights=weights)


def joint_stage(training: Training, epochs: int, watches: Sequence[EarlyStopping] = ()) -> Stage:
    """All three losses; the clusters are evaluated several times where the stage is watched."""
    config, first = training.runs[0].method.config, training.runs[0].n_epochs
    due = {first + round(epochs * part / _EVALUATIONS) for part in range(1, _EVALUATIONS + 1)}

    def evaluate(epoch: int) -> None:
        if watches and epoch in due:
            training.unstack()
            for watch, run, embedding in zip(watches, training.runs, embed_all(training), strict=True):
                watch.evaluate(epoch, embedding, run.diverged)

    rate = config.rate * config.joint_factor(len(training.runs[0].stored))
    steps = epochs, config.batch_size, rate, loss_of(training, joint=True)
    decay = config.weight_decay
    return Stage("joint", *steps, last="drop short", weight_decay=decay, after_epoch=evaluate, watches=watches)


def loss_of(training: Training, *, joint: bool) -> Callable[[Tensor], Mapping[str, Tensor]]:
    """From a batch of rows to the terms of the loss and their weighted sum."""
    runs, method, stored, first = training.runs, training.runs[0].method, training.pooled, training.first_rows
    count = method.draws_per_sample(stored)

    def of_all(known: list[Tensor | None]) -> Tensor | None:
        """What guides the samples of each network, of shape (replicates, samples); None where nothing does."""
        return torch.stack(known) if all(own is not None for own in known) else None  # type: ignore[arg-type]

    classes = of_all([run.known.followed for run in runs]) if joint else None
    weights = of_all([run.known.weights for run in runs])
    view_dropout, weight = training.number("view_dropout").view(-1, 1, 1), training.number("clustering_weight")

    def prepared(rows: Tensor) -> StepBatch:
        draws = torch.unflatten(training.random.uniform(rows.shape[1] * count), 1, (rows.shape[1], -1))
        return method.prepare(stored, rows + first, view_dropout, draws)

    pair_loss = pair_loss_of(training, prepared) if joint and runs[0].known.pairs is not None else None

    def loss(rows: Tensor) -> dict[str, Tensor]:
        batch = prepared(rows)
        if classes is not None:
            batch = batch._replace(known=classes[training.each, rows])
        if weights is not None:
            batch = batch._replace(weights=weights[training.each, rows])
        terms = method.losses(training.network, batch, joint=joint)
        if pair_loss:
            terms[PAIRS] = pair_loss()
        return {**terms, "total": method.total(terms, weight)}

    return loss


def stacked_groups(runs: Sequence[TrainState]) -> Iterator[Sequence[TrainState]]:
    """The trainings that run together: those that had as many epochs, on samples of equal shapes."""
    groups: dict[tuple[int, ...], list[TrainState]] = {}
    for run in runs:
        widths = [view.shape[1] for view in run.stored.values]
        groups.setdefault((run.n_epochs, len(run.stored), *widths), []).append(run)
    for group in groups.values():
        count = -(-len(group) // max_stacked(group[0].network, group[0].device))
        size = -(-len(group) // count)
        yield from (group[start : start + size] for start in range(0, len(group), size))


@torch.no_grad()
def embed_all(training: Training) -> Tensor:
    """Embeddings of the samples of each network as they are, of shape (networks, samples, embedding)."""
    method, stored, n, device = training.runs[0].method, training.pooled, training.n_samples, training.device
    size = rows_for_all(n, device) or max(_LEAST_ROWS, _MOST_ROWS // len(training.runs))
    parts = []
    with tensor_cores(device):
        for own in fixed_rows(n, size, device):
            rows = own + training.first_rows
            found = method.embed(training.network, stored.take(rows.flatten()), stored)
            parts.append(torch.unflatten(found, 0, rows.shape))
    return torch.cat(parts, dim=1)[:, :n]


def measured_step(widths: Sequence[int], config: Config, n_samples: int) -> float:
    """Seconds of a step on this machine's CPU, as a fit of so many samples takes it: the fastest of three."""
    draws, n = torch.Generator().manual_seed(0), max(2, min(n_samples, config.batch_size))
    values = [torch.randn(n, width, generator=draws) for width in widths]
    config = config.sized(n_samples)
    stored = index_training_set(values, torch.ones(n, len(widths), dtype=torch.bool), URRLMethod(config).neighbor_depth)
    with limited(threads_for(1, n_samples)):
        training, seconds = Training([init_state(stored, config, 0)]), list[float]()
        steps = training.begin(pretraining_stage(training, _TIMED))
        for epoch in range(_TIMED):
            begun = perf_counter()
            steps.run(epoch)
            seconds.append(perf_counter() - begun)
    return min(seconds[1:])  # the first one prepares


def embed_stored(run: TrainState) -> Tensor:
    """Embeddings of the training samples as they are, of shape (samples, embedding); stops if one is not finite."""
    embedding = embed(run.method, run.network, run.stored, run.stored)
    run.diverged = broken_embedding(embedding, run.n_epochs)
    check_diverged([run])
    return embedding


def broken_embedding(embedding: Tensor, epoch: int) -> str:
    """The last update of an epoch can break the weights without a loss that shows it; empty if it did not."""
    return "" if torch.isfinite(embedding).all() else f"the embedding is not finite after epoch {epoch}"


def planned_epochs(run: TrainState) -> Epochs:
    """Of the two stages."""
    return run.method.config.epochs(len(run.stored))


def _prepare_joint_stage(run: TrainState, embedding: Tensor) -> None:
    """Weigh the clustering loss and place the centres, given the embeddings of shape (samples, embedding)."""
    losses, config, known = run.history["reconstruction"], run.method.config, run.known
    chosen = clustering_weight(float(losses[-1]) if losses else None)
    asked = config.clustering_weight
    run.numbers["clustering_weight"] = chosen if isinstance(asked, str) else asked
    how = config.n_clusters, run.seed, run.stored.neighbor_ids
    if known.classes is not None:
        centers, doubted = known_centers(embedding, known, *how)
        run.known = replace(known, doubted=doubted)
    elif config.center_start == "ward":
        centers = torch.from_numpy(paper_centers(embedding, config.n_clusters))
    else:
        centers = torch.from_numpy(initial_centers(embedding, *how, known.weights, known.views))
    run.network.centers.data.copy_(centers)
    run.clusters = clusters(run.method, run.network, embedding)
    run.joint_stage.kept = run.n_epochs


def pretraining_decision(run: TrainState, agreed: float | None) -> PretrainingLength:
    """How long the first stage lasted; `agreed` says how far several trainings did when the scaling was chosen."""
    lasted = run.history["stage"].count("pre-training")
    evidence, single = {} if agreed is None else {"agreement": agreed}, run.method.n_clusters == 1
    return PretrainingLength(lasted, evidence, planned_epochs(run).pretraining, single)


def joint_stage_decision(run: TrainState) -> JointStageLength:
    """After how many epochs of the joint stage the network is kept, and what was seen."""
    stage, lasted = run.joint_stage, run.history["stage"].count("joint")
    evidence = {
        "neighbor_agreement_after_epoch": {str(epoch): found for epoch, found in stage.seen.items()},
        "score_after_epoch": {str(epoch): found for epoch, found in stage.score.items()},
        "size_entropy_after_epoch": {str(epoch): found for epoch, found in stage.size_entropy.items()},
        "clustering_weight": run.numbers["clustering_weight"],
    }
    before = [*run.history["stage"], "joint"].index("joint")
    length = JointStageLength(stage.kept - before, evidence, lasted, planned_epochs(run).joint, stage.ended)
    return replace(length, single=run.method.n_clusters == 1)
