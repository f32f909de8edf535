"""What a fit decided without labels, as data. `viewfuse.selection.messages` turns these objects into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Decision:
    """What was chosen, and from which evidence; `name` is its key in ``decisions_``."""

    name: ClassVar[str]
    chosen: Any
    evidence: Mapping[str, Any]


@dataclass(frozen=True)
class ClusterNumber(Decision):
    """How many clusters there are; the evidence is the strength of the "weakest" split that stands and of the "next".

    Attributes
    ----------
    kind : "clusters", "one" where no split stands, "continuum" of one where nothing is apart, "few" samples
    levels : smaller numbers after which splits are much weaker, in rising order
    end : "largest" or "smallest" where the range of numbers ended there and the data say more or fewer
    splits : those tested, parents first: "parent" (its place, -1 of the first) and "side" of it, "sizes", "strength",
        "error" (its deviation over Gaussians), "stands", "p_value" and its "level", "agreement" and that in a Gaussian
        ("null"), "held_out" by view, "views": the agreement in each, "alone": the view that shows it alone, else
        False, "stability", "gap"
    islands : clusters of a first fit that were two islands, for each of which there is one more
    """

    name = "n_clusters"
    kind: str
    levels: Sequence[int]
    end: str
    splits: Sequence[Mapping[str, Any]]
    islands: int = 0


@dataclass(frozen=True)
class CellFilling(Decision):
    """How empty cells were filled; the evidence counts them by view, see `EmptyCells.facts`."""

    name = "empty_cells"


@dataclass(frozen=True)
class ViewReduction(Decision):
    """How each view was reduced.

    Attributes
    ----------
    chosen, evidence : by view the name of the reduction, and what was found in its values
    columns : by view the number of columns before and after
    asked : views whose reduction the user named
    """

    name = "reduction"
    columns: Mapping[str, Sequence[int]]
    asked: Sequence[str]


@dataclass(frozen=True)
class ScalingChoice(Decision):
    """Which scaling was chosen; the evidence is the score of the clusters under each.

    Attributes
    ----------
    as_a_whole : views whose columns share one scale
    diverged : scalings under which every training diverged
    asked : whether the user named the scaling
    clear, quick : why no other scaling was tried: its clusters were clear, or to save time
    """

    name = "scaling"
    as_a_whole: Sequence[str]
    diverged: Sequence[str]
    asked: bool
    clear: bool = False
    quick: bool = False


@dataclass(frozen=True)
class PretrainingLength(Decision):
    """How many epochs pre-training lasted; the evidence is the agreement of trainings, if there were several."""

    name = "pretraining"
    planned: int


@dataclass(frozen=True)
class JointStageLength(Decision):
    """After how many epochs of the joint stage the network was kept.

    Attributes
    ----------
    lasted, planned : epochs
    ended : what went wrong, if that ended the stage; else empty
    """

    name = "joint_stage"
    lasted: int
    planned: int
    ended: str


@dataclass(frozen=True)
class ClusterSource(Decision):
    """Who found the clusters, "network", "k-means", "graph", "tree", "earlier", "hints"; the evidence is each score."""

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
        """The word: "high", "some" or "none"."""
        return str(self.chosen)


@dataclass(frozen=True)
class Outliers(Decision):
    """How many samples lie far from all others in a view that they have.

    Attributes
    ----------
    evidence : by view and id of the sample how many times as far as usual its fifth neighbour is
    samples : how many there are in all
    """

    name = "outliers"
    samples: int


@dataclass(frozen=True)
class KnownClasses(Decision):
    """How many samples of known classes were used.

    Attributes
    ----------
    evidence : by class the ids of its samples, in the order of the clusters that are theirs
    samples : how many there are in all
    agreed : how many of them are in the cluster of their class
    doubtful : by id the class of those that all of their views place elsewhere
    unused : how many of the doubtful were not followed
    """

    name = "hints"
    samples: int
    agreed: int
    doubtful: Mapping[str, str]
    unused: int = 0


@dataclass(frozen=True)
class KnownPairs(Decision):
    """How many pairs of samples were known to be together or apart.

    Attributes
    ----------
    evidence : "must_link" and "cannot_link": the ids of the samples of each pair
    kept : how many of them the clusters keep
    broken : the evidence of those that they do not keep
    """

    name = "pairs"
    kept: int
    broken: Mapping[str, Sequence[Sequence[str]]]


@dataclass(frozen=True)
class KnownWeights(Decision):
    """How many samples were learned from, where not all count the same.

    Attributes
    ----------
    evidence : "samples" and "views": the weights, of mean 1, by id and by name
    """

    name = "weights"


@dataclass(frozen=True)
class BatchEffects(Decision):
    """The batches whose effects were taken out, with their numbers of samples.

    Attributes
    ----------
    evidence : adjusted mutual information of clusters and batches, "before" (mean of k-means in each view) and "after"
    alone : by cluster the batch that nearly all of its samples are of
    """

    name = "batches"
    alone: Mapping[str, str]


@dataclass(frozen=True)
class KeptNumbers(Decision):
    """Which clusters have numbers of a former model.

    Attributes
    ----------
    evidence : "samples", how many are known to both, "share", how many of these have the same number, and
        "by_ids", whether they are known by their ids or were placed by the former model
    new, unused : numbers that the former model lacks, and those that no cluster has now
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


@dataclass(frozen=True)
class SavedSentence(Decision):
    """A decision in the form of an older viewfuse, of which the saved sentence is used; `key` is its name."""

    key: str
    why: str


KINDS = {
    kind.name: kind
    for kind in (
        ClusterNumber, CellFilling, ViewReduction, ScalingChoice, PretrainingLength, JointStageLength, ClusterSource,
        MeanConfidence, Trust, Outliers, KnownClasses, KnownPairs, KnownWeights, BatchEffects, KeptNumbers, Update,
    )
}  # fmt: skip
