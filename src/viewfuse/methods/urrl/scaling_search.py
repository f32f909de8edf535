"""The trainings of a set of samples: which scalings are tried, with which seeds, and which scaling is chosen.

The rule that chooses is `viewfuse.selection.rules.best_scaling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.scaling import Scaler
from viewfuse.data.side_information.knowledge import NOTHING, UNGUIDED, Guidance, Knowledge
from viewfuse.data.views import Views
from viewfuse.engine.replicates import clusters, free_bytes, seed_under_scaling
from viewfuse.engine.training import TrainState, check_diverged
from viewfuse.errors import NotEnoughMemory
from viewfuse.fitted.model import Source, prepare, scalers_of
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.consensus import majority
from viewfuse.methods.urrl.hints import class_centers, class_numbers
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.methods.urrl.network import fit_bytes, fit_seconds
from viewfuse.methods.urrl.stages import embed_stored, init_state, measured_step
from viewfuse.selection.decisions import ClusterSource
from viewfuse.selection.linkage import candidate_partitions, centers_of, tree_clusters, unequal_clusters
from viewfuse.selection.rules import SCALINGS, STABLE, are_clear, best_of_each, best_scaling, clearly_better
from viewfuse.selection.scores import Candidate, agreement, candidate_scores, matched_kappa, merits
from viewfuse.utils.settings import Field, Setting

_LONG = 60.0  # above this many seconds the user sees how long the wait may be


@dataclass
class Trial:
    """Samples with what one training makes of them."""

    scaler: Scaler
    others: Mapping[str, NDArray[np.int64]]  # partitions that are found without a network, see `candidate_partitions`
    run: TrainState
    found: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # by the network itself

    def candidate(self, labels: NDArray[np.int64]) -> Candidate:
        """A partition that it found, to be compared with others."""
        return Candidate(self.scaler.kind, labels, self.run.stored.neighbor_ids, self.run.objective)

    @property
    def is_clear(self) -> bool:
        """Whether k-means on the filled views finds nearly the same clusters; never after a divergence."""
        if self.run.diverged:
            return False
        return are_clear(matched_kappa(self.found, self.others["k-means"]), len(self.found), self.run.method.n_clusters)

    def start(self) -> NDArray[np.int64]:
        """The clusters that the joint stage begins with, of shape (samples,)."""
        assert self.run.clusters is not None
        return self.run.clusters.cpu().numpy()

    def begin_with_best(self) -> None:
        """Let the joint stage begin with the best partition that is known, not with k-means on the embedding only."""
        embedding, self.found = embed_stored(self.run), self.start()
        if self.teach(self.found, embedding).chosen != "network":
            self.run.clusters = clusters(self.run.method, self.run.network, embedding)

    def teach(self, labels: NDArray[np.int64], embedding: Tensor, **more: NDArray[np.int64]) -> ClusterSource:
        """Teach the network a partition that scores clearly higher than its own labels, if it can learn one.

        Those are `others`, which were found without it, and `more` by name. A consensus comes last; average linkage
        comes first where it is better than what would.
        """
        method, ids, known = self.run.method, self.run.stored.neighbor_ids, self.run.known
        others = {**self.others, **more} if method.config.center_start == "best" else {}
        partitions = [torch.from_numpy(x).to(ids.device) for x in (labels, *others.values())]
        own, *theirs = merits(partitions, ids, method.n_clusters, known.views)
        found = dict(zip(others, theirs, strict=True))
        alike = {name: matched_kappa(labels, other) for name, other in others.items()}
        better = [name for name in found if clearly_better(found[name], own, found_in=name, kappa=alike[name])]
        if known is not UNGUIDED:
            better = [name for name in better if self._keeps_known(others[name], labels)]
        evidence = {"network": own.score} | {name: one.score for name, one in found.items()}
        better.sort(key=lambda name: (name == "consensus", -found[name].score))
        if "linkage" in better and clearly_better(found["linkage"], found[better[0]], found_in="linkage"):
            better.insert(0, "linkage")
        for name in better:
            centers = centers_of(embedding, others[name], method.n_clusters)
            if centers is not None:
                self.run.network.centers.data.copy_(centers)
                return ClusterSource(name, evidence)
        return ClusterSource("network", evidence)

    def conclude(
        self, labels: NDArray[np.int64], embedding: Tensor, earlier: Sequence[NDArray[np.int64]],
        simple: Sequence[NDArray[np.int64]] = (),
    ) -> ClusterSource:  # fmt: skip
        """Teach what is best at the end: also what is in the embedding, in earlier partitions, or in the hints.

        Where there are partitions of `simple` methods, they vote with all others. Average linkage is too often far off.
        """
        run, ids, k = self.run, self.run.stored.neighbor_ids, self.run.method.n_clusters
        found = merits([torch.from_numpy(own).to(ids.device) for own in earlier], ids, k, run.known.views)
        best = max(range(len(earlier)), key=lambda i: found[i].score)
        more = self.in_embedding(embedding)
        if simple:
            voters = [own for name, own in {**self.others, **more}.items() if name != "linkage"]
            more["consensus"] = majority(labels, [*voters, *simple])
        more["earlier"] = earlier[best]
        source = self.teach(labels, embedding, **more)
        if run.known.followed is None:
            return source
        placed = clusters(run.method, run.network, embedding).cpu().numpy()
        centers = class_centers(embedding, placed, run.known.followed.cpu().numpy(), k)
        if centers is None:
            return source
        run.network.centers.data.copy_(centers)
        return replace(source, chosen="hints")

    def in_embedding(self, embedding: Tensor) -> dict[str, NDArray[np.int64]]:
        """By name what the tree and average linkage of an embedding find, with the numbers of the known classes."""
        k, classes = self.run.method.n_clusters, self.run.known.followed
        ways = {
            "tree": tree_clusters(embedding, self.run.stored.neighbor_ids, k, self.run.seed),
            "linkage": unequal_clusters(embedding, k),
        }
        found = {name: own for name, own in ways.items() if own is not None}
        if classes is not None:
            found = {name: class_numbers(own, classes.cpu().numpy(), k)[own] for name, own in found.items()}
        return found

    def _keeps_known(self, other: NDArray[np.int64], labels: NDArray[np.int64]) -> bool:
        """Whether another partition agrees with as many hints and pairs, or fewer by one standard error at most."""
        ours, theirs = (self.run.known.kept(own) for own in (labels, other))
        lost, won = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
        return lost - won <= sqrt(lost + won)


@dataclass
class Search:
    """The trainings of one set of samples, of which those with the best scaling are continued."""

    source: Source
    config: Config
    seeds: Sequence[int]
    device: torch.device
    scalers: list[Scaler]  # those that were not tried yet
    asked: bool  # whether the user named the scaling
    known: Knowledge = NOTHING
    trials: list[Trial] = field(default_factory=list)  # all, and later those with the chosen scaling
    found: list[NDArray[np.int64]] = field(default_factory=list)  # clusters of all networks, those of `trials` first
    starts: list[NDArray[np.int64]] = field(default_factory=list)  # the same with what better partitions taught them
    evidence: dict[str, float] = field(default_factory=dict)  # the best score by scaling
    failed: list[str] = field(default_factory=list)  # scalings with which no training kept finite losses
    clear: bool = False  # whether the clusters were clear

    @classmethod
    def of(
        cls, source: Source, config: Config, scaling: str, seeds: Sequence[int], device: torch.device,
        known: Knowledge = NOTHING,
    ) -> Search:  # fmt: skip
        """Begin with one scaling; where all will be tried, with all, so that their trainings run side by side."""
        search = cls(source, config, seeds, device, scalers_of(source, scaling), scaling != "auto", known)
        search.widen(None if config.effort == "thorough" else 1)
        return search

    def widen(self, most: int | None = None) -> list[Trial]:
        """Add the trainings under scalings that were not tried yet, all or some: each with each seed."""
        known, k, new = self.known, self.config.n_clusters, list[Trial]()
        depth = URRLMethod(self.config).neighbor_depth
        guidance = UNGUIDED if known is NOTHING else Guidance.of(known, self.device)
        for scaler in self.scalers[:most]:
            scaler = scaler.weighed(known.views)
            stored = prepare(self.source, scaler, depth, self.device)
            others = candidate_partitions(stored, k, self.seeds[0], guidance.weights, guidance.views)
            if known.hints is not None:
                others = {name: class_numbers(own, known.hints.codes, k)[own] for name, own in others.items()}
            place = 0 if self.asked else SCALINGS.index(scaler.kind)
            seeds = [seed_under_scaling(seed, place) for seed in self.seeds]
            new += [Trial(scaler, others, init_state(stored, self.config, one, guidance)) for one in seeds]
        self.trials += new
        del self.scalers[:most]
        return new

    @property
    def is_clear(self) -> bool:
        """Whether all trainings so far found what k-means finds in the filled views."""
        return all(trial.is_clear for trial in self.trials)

    def most_epochs(self, first: int) -> int:
        """Of all trainings, if every scaling is tried that may be, for `first` epochs; on a GPU side by side."""
        epochs = self.config.epochs(len(self.source.reduced))
        count, scalings = (1, 1) if self.device.type == "cuda" else (len(self.seeds), self._most_scalings)
        return count * (scalings * first + epochs.pretraining - first + epochs.joint)

    def long_wait(self) -> str:
        """How long a fit on a CPU may take, in words; empty where that is no more than a minute or on a GPU."""
        if self.device.type == "cuda":
            return ""
        views, config = self.source.reduced, self.config
        step = measured_step(views.widths, config, len(views))
        seconds = fit_seconds(len(views), views.widths, config, self._most_scalings, step) * len(self.seeds)
        minutes = max(2, round(seconds / 60))
        return f"training takes up to about {minutes} minutes on this CPU" if seconds > _LONG else ""

    @property
    def _most_scalings(self) -> int:
        """Those that have trainings, and those that may follow."""
        begun = len(self.trials) // len(self.seeds)
        return begun if self.config.effort == "quick" else begun + len(self.scalers)

    def choose(self) -> None:
        """Go on with the scaling whose best clusters have the highest score."""
        self.clear, tried = self.is_clear, dict.fromkeys(trial.scaler.kind for trial in self.trials)
        self.drop_diverged()
        candidates = [trial.candidate(trial.start()) for trial in self.trials]
        scores = candidate_scores(candidates, self.config.n_clusters, self.known.views)
        self.evidence = {scaling: scores[i] for scaling, i in best_of_each(candidates, scores).items()}
        self.failed = [scaling for scaling in tried if scaling not in self.evidence]
        chosen = best_scaling({one: self.evidence[one] for one in SCALINGS if one in self.evidence} or self.evidence)
        self.trials.sort(key=lambda trial: trial.scaler.kind != chosen)
        self.found, self.starts = [trial.found for trial in self.trials], [trial.start() for trial in self.trials]
        self.trials = [trial for trial in self.trials if trial.scaler.kind == chosen]

    def drop_diverged(self) -> None:
        """Leave out trainings that diverged; stop if all did."""
        broken = [i for i, trial in enumerate(self.trials) if trial.run.diverged]
        if len(broken) == len(self.trials):
            check_diverged([trial.run for trial in self.trials])
        for place in reversed(broken):
            for own in (self.trials, self.found, self.starts):
                del own[place : place + 1]

    @property
    def agreed(self) -> float | None:
        """How far the trainings agreed when the scaling was chosen."""
        return agreement(self.found[0], self.found[1:])

    @property
    def settled(self) -> bool:
        """Whether nearly the same clusters were found in several ways, so that more pre-training would bring little."""
        return self.clear or (self.agreed is not None and self.agreed >= STABLE)


def take_over(searches: Sequence[Search], begun: TrainState | None, epochs: int) -> None:
    """Go on from a pre-training, if there is one, of so many epochs that one of the trainings would only repeat.

    That is one with the same samples, seed and network, but for the number of clusters.
    """
    if begun is None or begun.n_epochs != epochs:
        return
    weights = {name: x for name, x in begun.network.state_dict().items() if name != "centers"}
    given = begun.stored.present, *begun.stored.values
    for run in (trial.run for search in searches for trial in search.trials):
        own = {name: x.shape for name, x in run.network.state_dict().items() if name != "centers"}
        samples = zip((run.stored.present, *run.stored.values), given, strict=True)
        is_alike = run.seed == begun.seed and own == {name: x.shape for name, x in weights.items()}
        if is_alike and all(torch.equal(*pair) for pair in samples):
            run.network.load_state_dict(weights, strict=False)
            run.history = {name: list(values) for name, values in begun.history.items()}


def check_memory(views: Views, config: Config, device: torch.device, n_waiting: int = 0) -> None:
    """Refuse a training that cannot end well, before it begins, with others that wait for their turn."""
    needed, free = fit_bytes(len(views), views.widths, config, n_waiting=n_waiting), free_bytes(device)
    if needed > free:
        widths = ", ".join(f"{name} {width:,}" for name, width in zip(views.names, views.widths, strict=True))
        raise NotEnoughMemory(
            f"training on {len(views):,} samples with columns {widths} and ",
            Field("n_neighbors", config.n_neighbors),
            f" needs about {needed:,} bytes, but only {free:,} are free; use ",
            Setting("reduction", "auto"),
            ", fewer columns or neighbours",
        )
