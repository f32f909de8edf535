"""What a fit decided without labels, as data. `viewfuse.selection.decision_texts` turns these objects into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar


@dataclass(frozen=True)
class Decision:
    """What was chosen, and from which evidence; `name` is its key in ``decisions_``."""

    name: ClassVar[str] = ""
    chosen: Any
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class ClusterNumber(Decision):
    """How many clusters there are; the evidence is the strength of the "weakest" split that stands and of the "next".

    Attributes
    ----------
    kind : "clusters", "one" where no split stands, "continuum" of one where nothing is apart, "few" samples
    levels : smaller numbers after which splits are much weaker, in rising order
    end : "largest" or "smallest" where the range of numbers ended there and the data say more or fewer; "known" where
        hints or pairs need as many, and the data say fewer
    splits : those tested, parents first: "parent" (its place, -1 of the first) and "side" of it, "sizes", "strength",
        "error" (its deviation over Gaussians), "stands", "p_value" and its "level", "agreement" and that in a Gaussian
        ("null"), "held_out" by view, "views": the agreement in each, "alone": the view that shows it alone, else
        False, "stability", "gap", "valley" (its p-value, None where it is not asked for)
    islands : clusters of k-means that were two islands, for each of which there is one more
    alone : the views of which one alone showed such islands
    unasked : views of few categories, which were left out
    """

    name = "n_clusters"
    kind: str
    levels: Sequence[int]
    end: str
    splits: Sequence[Mapping[str, Any]]
    islands: int = 0
    alone: Sequence[str] = ()
    unasked: Sequence[str] = ()


@dataclass(frozen=True)
class CellFilling(Decision):
    """How empty cells were filled; the evidence counts them by view, see `EmptyCells.facts`."""

    name = "empty_cells"


@dataclass(frozen=True)
class ViewReduction(Decision):
    """By view how it was reduced, with what was found in its values as evidence; `asked` are those the user named."""

    name = "reduction"
    columns: Mapping[str, Sequence[int]]  # by view, before and after
    asked: Sequence[str]


@dataclass(frozen=True)
class ScalingChoice(Decision):
    """Which scaling was chosen; the evidence is the score of the clusters under each."""

    name = "scaling"
    as_a_whole: Sequence[str]  # views whose columns share one scale
    diverged: Sequence[str]  # scalings under which every training diverged
    asked: bool  # whether the user named the scaling
    clear: bool = False  # why no other was tried: the clusters were clear,
    quick: bool = False  # or to save time
    single: bool = False  # whether there was one cluster, which is as good under each


@dataclass(frozen=True)
class PretrainingLength(Decision):
    """How many epochs pre-training lasted; the evidence is the agreement of trainings, if there were several."""

    name = "pretraining"
    planned: int
    single: bool = False  # whether there was one cluster, which needs no training


@dataclass(frozen=True)
class JointStageLength(Decision):
    """After how many epochs of the joint stage the network was kept; `ended` is what went wrong, else empty."""

    name = "joint_stage"
    lasted: int
    planned: int
    ended: str
    single: bool = False  # whether there was one cluster, which needs no joint stage


@dataclass(frozen=True)
class ClusterSource(Decision):
    """Who found the clusters; the evidence is each score.

    "network", "k-means", "graph", "tree", "linkage", "earlier", "hints", or "consensus", the vote of all and of simple
    methods.
    """

    name = "clusters"


@dataclass(frozen=True)
class MeanConfidence(Decision):
    """The mean chance that a sample is in its cluster again; no evidence where the paper's soft labels stay."""

    name = "confidence"
    n_clusters: int


@dataclass(frozen=True)
class Trust(Decision):
    """Whether the same clusters would be found if the fit were repeated: "high", "some" or "none".

    Attributes
    ----------
    evidence : "again", the mean chance that a sample is in its cluster again, and its 90 % interval, "low" and "high"
    n_clusters : how many clusters there are; 1/n_clusters is chance
    refits : how many repeated fits measured it, see `validate`; 0 where it is an estimate
    clusters : the same numbers for each cluster, in the order of their labels
    reasons : what to know of these clusters, the gravest first: the "name" of each, and the numbers behind it
    """

    name = "trust"
    n_clusters: int
    refits: int = 0
    clusters: Sequence[Mapping[str, float]] = ()
    reasons: Sequence[Mapping[str, Any]] = ()

    @property
    def level(self) -> str:
        """The word: "high", "some" or "none", also where there is one cluster, which is not judged."""
        return str(self.chosen)


@dataclass(frozen=True)
class Outliers(Decision):
    """How many of all `samples` lie far from all others in a view.

    The evidence is by view and id how many times as far as usual the fifth neighbour is.
    """

    name = "outliers"
    samples: int


@dataclass(frozen=True)
class KnownClasses(Decision):
    """How many of all `samples` had known classes; the evidence is by class, in the order of the clusters, their ids.

    Attributes
    ----------
    agreed : how many of them are in the cluster of their class
    doubtful : by id the class of those that all of their views place elsewhere; `unused` of these were not followed
    with_class : by class how many of its samples are in its cluster; empty in models of before
    """

    name = "hints"
    samples: int
    agreed: int
    doubtful: Mapping[str, str]
    unused: int = 0
    with_class: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KnownPairs(Decision):
    """How many pairs were known; the evidence is the ids of each pair of "must_link" and "cannot_link".

    The clusters keep so many as `kept` says, and not those in `broken`.
    """

    name = "pairs"
    kept: int
    broken: Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True)
class KnownWeights(Decision):
    """How many samples were learned from; the evidence is the weights of "samples", by id, and "views", by name."""

    name = "weights"


@dataclass(frozen=True)
class BatchEffects(Decision):
    """The batches whose effects were taken out, with their numbers of samples.

    The evidence is the adjusted mutual information of clusters and batches, "before" (mean of k-means in each view) and
    "after"; `alone` is by cluster the batch that nearly all of its samples are of.
    """

    name = "batches"
    alone: Mapping[str, str]


@dataclass(frozen=True)
class KeptNumbers(Decision):
    """Which clusters have numbers of a former model.

    The evidence: how many "samples" are known to both, the "share" of these with the same number, and whether they are
    known "by_ids" or were placed by the former model. `new` are numbers that it lacks, `unused` those without a cluster
    now.
    """

    name = "numbers"
    new: Sequence[int]
    unused: Sequence[int]


@dataclass(frozen=True)
class Update(Decision):
    """How many new samples joined a fitted model, the last time; the evidence: old "samples", the share that "stayed".

    Attributes
    ----------
    moved : old samples whose cluster is another one now: the id of each, and both numbers
    founded : clusters of samples that fitted nowhere: the "label", the "size", what it stands "beside", and what
        speaks for the split between these two, see `ClusterNumber`
    empty : numbers without samples
    waiting : ids of samples that fit nowhere and have no cluster of their own; the next update looks at them again
    """

    name = "update"
    moved: Sequence[Sequence[Any]]
    founded: Sequence[Mapping[str, Any]]
    empty: Sequence[int]
    waiting: Sequence[str]


VALLEYS = 4
"""How many times as high as the level of a split the p-value of its valley may be."""
KINDS = {kind.name: kind for kind in Decision.__subclasses__()}


@dataclass(frozen=True)
class SavedSentence(Decision):
    """A decision in the form of an older viewfuse, of which the saved sentence is used; `key` is its name."""

    key: str
    why: str
