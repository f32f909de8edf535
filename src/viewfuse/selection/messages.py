"""Decisions in words: the only module that turns them into sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from functools import singledispatch
from typing import Any, NamedTuple

from viewfuse.data.filling import in_words as cells_in_words
from viewfuse.selection import decisions as kinds
from viewfuse.selection.decisions import KINDS, Decision, SavedSentence, Trust
from viewfuse.utils.settings import Setting, Spell, written

_LABELS = {"n_clusters": "number of clusters", "pretraining": "pre-training"}
"""What people call decisions, where it differs from their names."""
SEEN = 0.1  # the least agreement of neighbours in a view that was left out, where it shows a split at all


def records(*decisions: Decision) -> dict[str, dict[str, Any]]:
    """Decisions by name as ``decisions_`` holds them: their data, and "why" in words."""
    return {one.name: asdict(one) | {"why": f"{label(one)}: {words(one)}"} for one in decisions}


def restored(saved: Mapping[str, Mapping[str, Any]]) -> dict[str, Decision]:
    """Decisions from their `records`; those of an older form keep the sentence that was saved with them."""
    return {name: _restored(name, record) for name, record in saved.items()}


def _restored(name: str, record: Mapping[str, Any]) -> Decision:
    try:
        kind = KINDS[name]
        found = kind(**{one.name: record[one.name] for one in fields(kind) if one.name in record})
        words(found)
    except (KeyError, TypeError, ValueError, AttributeError):  # an unknown name, or other fields and evidence
        return SavedSentence(record.get("chosen"), record.get("evidence") or {}, name, str(record.get("why", "")))
    return found


def label(decision: Decision) -> str:
    """What people call a decision."""
    name = decision.key if isinstance(decision, SavedSentence) else decision.name
    return _LABELS.get(name, name.replace("_", " "))


@singledispatch
def words(decision: Decision, spell: Spell = str) -> str:
    """What was decided and why, in words."""
    raise TypeError(f"a decision of an unknown kind: {decision!r}")


@words.register
def _(decision: SavedSentence, spell: Spell = str) -> str:
    return decision.why.removeprefix(f"{label(decision)}: ")


@words.register
def _(decision: kinds.CellFilling, spell: Spell = str) -> str:
    if not decision.evidence:
        return "none"
    source = {"neighbors": "from the nearest rows", "median": "with medians of columns"}[decision.chosen]
    return f"filled {source}; " + "; ".join(cells_in_words(*pair) for pair in decision.evidence.items())


_STEPS = {
    "none": "principal components", "standard": "principal components of standardised columns",
    "log1p": "logarithms, principal components", "log": "equal row sums, logarithms, principal components",
    "terms": "tf-idf, unit length, singular vectors", "links": "even sums, weighted singular vectors",
    "weighted": "logarithms, unit length, singular vectors",
}  # fmt: skip


@words.register
def _(decision: kinds.ViewReduction, spell: Spell = str) -> str:
    reduced = [_reduced(name, decision) for name, how in decision.chosen.items() if how != "none"]
    return "; ".join(reduced) or ("none, as asked" if decision.asked else "none, every view is narrow enough")


def _reduced(name: str, decision: kinds.ViewReduction) -> str:
    (before, after), facts = decision.columns[name], decision.evidence[name]
    steps, kept = _STEPS[facts["transform"]], f"{facts['kept']:.0%} of the variance"
    return f"{name}, {facts['name']}, from {before:,} to {after} columns ({steps}; {kept})"


@words.register
def _(decision: kinds.ScalingChoice, spell: Spell = str) -> str:
    failed = f"; training diverged with {' and '.join(decision.diverged)}" if decision.diverged else ""
    return f"{decision.chosen}{_why_scaling(decision, spell)}{failed}{_on_mixing(decision)}"


def _why_scaling(decision: kinds.ScalingChoice, spell: Spell) -> str:
    scores = dict(sorted(decision.evidence.items(), key=lambda pair: -pair[1]))
    if decision.asked:
        return ", as asked"
    if decision.clear:
        return "; others were not tried, as its clusters are clear"
    if decision.quick:
        return f"; others were not tried ({written(Setting('effort', 'quick'), spell)})"
    if len(scores) == 1:
        return ", the only one that could be trained" if decision.diverged else ", as all others do the same here"
    is_best = scores[decision.chosen] >= max(scores.values())
    subject = "its clusters agree best" if is_best else "no other gives clusters that agree clearly better"
    return f", as {subject} with the neighbours in all views {_listed(scores)}"


def _listed(numbers: Mapping[str, float], what: str = "score") -> str:
    return f"({what}: {', '.join(f'{name} {number:.3f}' for name, number in numbers.items())})"


def _on_mixing(decision: kinds.ScalingChoice) -> str:
    if decision.chosen == "mixed":
        whole = ", ".join(decision.as_a_whole)
        return f"; one scale for all columns of {whole}" if whole else "; every column has its own scale"
    if len(decision.evidence) > 1 and "mixed" not in (*decision.evidence, *decision.diverged):
        return "; mixed was not tried, as it does the same as standard here"
    return ""


@words.register
def _(decision: kinds.PretrainingLength, spell: Spell = str) -> str:
    lasted, planned, agreed = decision.chosen, decision.planned, decision.evidence.get("agreement")
    if lasted == planned:
        return f"all {lasted} epochs" if lasted else "none"
    index = "" if agreed is None else f" (adjusted Rand index {agreed:.2f})"
    return f"{lasted} of {planned} epochs, as {'trainings agree' if index else 'the clusters are clear'} by then{index}"


@words.register
def _(decision: kinds.JointStageLength, spell: Spell = str) -> str:
    kept, lasted = decision.chosen, decision.lasted
    if not lasted:
        return "none, k-means on the embedding gives the clusters"
    if decision.ended:
        return f"ended early, {decision.ended}; the network after {kept} epochs is kept"
    if not kept:
        return f"undone after {lasted} epochs, as it made the clusters no better"
    if kept < lasted:
        return f"the network after {kept} of {lasted} epochs is kept, when its clusters were the best"
    if lasted < decision.planned:
        return f"{lasted} of {decision.planned} epochs, as its clusters hardly got better"
    return f"all {lasted} epochs"


@words.register
def _(decision: kinds.ClusterSource, spell: Spell = str) -> str:
    if decision.chosen == "network":
        return f"those of the network {_listed(decision.evidence) if len(decision.evidence) > 1 else ''}".rstrip()
    found = {"graph": "the graph of neighbours in all views", "tree": "the tree of its embedding", "hints": "the hints"}
    found |= {"k-means": "k-means on the filled views", "earlier": "an earlier stage"}
    why = "more are with their class" if decision.chosen == "hints" else "neighbours stay together much better there"
    return f"those of {found[decision.chosen]}, which the network was taught, as {why} {_listed(decision.evidence)}"


@words.register
def _(decision: kinds.Outliers, spell: Spell = str) -> str:
    found = [(times, name, view) for view, far in decision.evidence.items() for name, times in far.items()]
    worst = {name: f"{name} ({times:.0f} times in {view})" for times, name, view in sorted(found)}
    named = ", ".join([*worst.values()][:-7:-1]) + (" and others" if len(worst) > 6 else "")
    return f"{decision.chosen} of {decision.samples:,} samples lie farther from all others than usual: {named}"


@words.register
def _(decision: kinds.KnownClasses, spell: Spell = str) -> str:
    named, doubted = (", ".join(map(str, one)) for one in (decision.evidence, decision.doubtful))
    found = f"{decision.chosen} of {decision.samples:,} samples, {decision.agreed} are with their class: {named}"
    why = f"; doubtful, as neighbours in all of their views are elsewhere ({decision.unused} not followed): {doubted}"
    return found + why * bool(doubted)


@words.register
def _(decision: kinds.KnownPairs, spell: Spell = str) -> str:
    broken = ", ".join(" and ".join(pair) for pairs in decision.broken.values() for pair in pairs)
    return f"{decision.kept} of {decision.chosen} are kept" + f"; not {broken}" * bool(broken)


@words.register
def _(decision: kinds.KnownWeights, spell: Spell = str) -> str:
    return f"{decision.chosen:,} samples are learned from {_listed(decision.evidence['views'], 'views')}"


@words.register
def _(decision: kinds.BatchEffects, spell: Spell = str) -> str:
    before, after = (decision.evidence[name] for name in ("before", "after"))
    alone = "".join(f"; cluster {c} is in {name} alone: confounded" for c, name in decision.alone.items())
    return f"{len(decision.chosen)} taken out; clusters follow them by {after:.2f} of 1, before by {before:.2f}{alone}"


@words.register
def _(decision: kinds.KeptNumbers, spell: Spell = str) -> str:
    found, parts = decision.evidence, (("kept", decision.chosen), ("new", decision.new), ("unused", decision.unused))
    source = f"{found['samples']:,} samples that {'both have' if found['by_ids'] else 'the former model placed'}"
    stay = f"{found['share']:.0%} of {source} have the number that they had"
    return "; ".join([*(f"{listed(list(own))} {word}" for word, own in parts if own), stay])


@words.register
def _(decision: kinds.Update, spell: Spell = str) -> str:
    n_new, n_old, moved = decision.chosen, decision.evidence["samples"], len(decision.moved)
    parts = [f"{n_new:,} new samples joined {n_old:,}; {moved:,} of these moved"]
    for word, own in (("new", [one["label"] for one in decision.founded]), ("empty", list(decision.empty))):
        parts += [f"{listed(own)} {'are' if own[1:] else 'is'} {word}"] if own else []
    return "; ".join(parts + [f"{len(decision.waiting):,} samples fit nowhere yet"] * bool(decision.waiting))


@words.register
def _(decision: kinds.MeanConfidence, spell: Spell = str) -> str:
    mean = f"{decision.chosen:.2f} on average"
    if not decision.evidence:
        return f"{mean}: the paper's soft labels, which are not calibrated"
    what = "the chance that a sample is in the same cluster again if the fit is repeated"
    return f"{mean}: {what} (other trainings put {decision.evidence['again']:.0%} there beyond chance)"


@words.register
def _(decision: Trust, spell: Spell = str) -> str:
    if decision.n_clusters == 1:
        few = any(one["name"] == "untested" for one in decision.reasons)
        return f"{decision.chosen}, as there is one cluster{', and too few samples to look for more' if few else ''}"
    source = f"measured by {decision.refits} repeated fits" if decision.refits else "an estimate"
    found = f"repeated fits put {again(decision.evidence)} into the same clusters"
    return f"{decision.chosen}: {found} ({source}; by luck {decision.evidence['chance']:.0%})"


def again(numbers: Mapping[str, float]) -> str:
    """A chance with its interval."""
    return f"{numbers['again']:.0%} of the samples ({100 * numbers['low']:.0f} to {100 * numbers['high']:.0f}%)"


@words.register
def _(decision: kinds.ClusterNumber, spell: Spell = str) -> str:
    count = decision.islands
    more = f"; in a first fit {count} cluster{'s were' if count > 1 else ' was'} two islands" if count else ""
    return f"{decision.chosen}{_WHY_SO_MANY[decision.kind]}{_on_splits(decision)}{more}{_ENDS[decision.end]}"


_WHY_SO_MANY = {
    "clusters": "", "few": ", as there are too few samples to look for more",
    "one": ", as samples fall apart no more clearly than those of a Gaussian of the same covariance",
    "continuum": ": a continuum, in which samples at the borders lie as densely as all others; cut it where you like, "
    "by asking for a number",
}  # fmt: skip
_ENDS = {
    "": "", "largest": "; this is the end of the range, and the data say more",
    "smallest": "; this is the beginning of the range, and the data say fewer",
}  # fmt: skip


def _on_splits(decision: kinds.ClusterNumber) -> str:
    standing = [one for one in decision.splits if one["stands"]]
    if decision.kind != "clusters" or not standing:
        return ""
    worst, count = max(one["p_value"] for one in standing), len(standing)
    splits = "1 split of the tree stands" if count == 1 else f"{count} splits of the tree stand"
    found = f", as {splits}: clearer than in a Gaussian of the same covariance (p {p_value(worst, '= ')}), "
    found += "and neighbours in views left out agree"
    lonely = sum(_seen_once(one["held_out"]) for one in standing)
    found += f"; {lonely} of the splits {'is' if lonely == 1 else 'are'} seen in one view only" if lonely else ""
    if not decision.levels:
        return found
    *most, last = map(str, decision.levels)
    levels = f"{', '.join(most)} and {last} clusters" if most else f"{last} clusters"
    return f"{found}; {levels} hold as well, as {'coarser levels' if most else 'a coarser level'}"


def p_value(value: float, sign: str = "") -> str:
    """A p-value, short, behind a sign such as "= "; of tiny ones that they are."""
    return f"{sign}{value:.2g}" if value >= 1e-4 else "< 0.0001"


def _seen_once(held_out: Mapping[str, float | None]) -> bool:
    """Whether no view that was left out agrees; without any that tells, this is not known."""
    return max((one for one in held_out.values() if one is not None), default=SEEN) < SEEN


class Reason(NamedTuple):
    """A reason in words; `advice` is empty where there is nothing to do."""

    what: str
    advice: str


def reasons_of(trust: Trust, spell: Spell = str) -> list[Reason]:
    """The reasons in words, the gravest first."""
    return [_WORDS[one["name"]](one, spell) for one in trust.reasons]


def advice_of(trust: Trust, spell: Spell = str) -> str:
    """The one thing to do first."""
    own = next((one.advice for one in reasons_of(trust, spell) if one.advice), "")
    if own or trust.chosen == "high" or trust.n_clusters == 1:
        return own
    usual = "Repeat the fit (`validate`) before you rely on them, or try another number of clusters."
    return "Check these clusters in another way, or try another number of clusters." if trust.refits else usual


def _batch(facts: Mapping[str, Any], spell: Spell) -> Reason:
    information = f"adjusted mutual information {facts['information']:.2f}, p {facts['p']:.3f}"
    cure = f"Fit again with {facts['column']} as {written(Setting('batch'), spell)}, or compare clusters within each."
    return Reason(f"The clusters follow {facts['column']} ({information}).", cure)


def _continuum(facts: Mapping[str, Any], spell: Spell) -> Reason:
    cure = "Use the embedding as coordinates instead of the clusters as kinds."
    return Reason("The data hold together hardly better than a Gaussian: they may be a continuum.", cure)


def _dissolves(facts: Mapping[str, Any], spell: Spell) -> Reason:
    cure = "Look at these first: they may be parts of others, or several kinds together."
    return Reason(f"Repeated fits would divide {listed(facts['clusters'])} in another way.", cure)


def _untested(facts: Mapping[str, Any], spell: Spell) -> Reason:
    cure = f"Ask for a number of clusters, such as {written(Setting('n_clusters', 2), spell)}, if you expect some."
    return Reason("There are too few samples to find out how many clusters there are.", cure)


def _range_end(facts: Mapping[str, Any], spell: Spell) -> Reason:
    cure = f"Let {written(Setting('cluster_range'), spell)} end at a larger number."
    return Reason(f"{facts['number']} is the largest number of clusters that was tried.", cure)


def _outliers(facts: Mapping[str, Any], spell: Spell) -> Reason:
    cure = "Look at these samples, and fit again without those that are errors."
    return Reason(f"{facts['count']} of {facts['samples']:,} samples lie far from all others.", cure)


def _one_view(facts: Mapping[str, Any], spell: Spell) -> Reason:
    numbers = f"{facts['agreement']:.2f} there, at most {facts['others']:.2f} in others"
    what = f"One view decides: only neighbours in {facts['view']} are in the same clusters ({numbers})."
    return Reason(what, "Check the units and the quality of the other views.")


def _unequal(facts: Mapping[str, Any], spell: Spell) -> Reason:
    cure = "Check whether the small ones are real, and the large ones whole: compare one cluster more and one less."
    sizes = f"the largest has {facts['most']:,} samples, the smallest {facts['least']:,}"
    return Reason(f"The clusters are very unequal: {sizes}.", cure)


def _kmeans(facts: Mapping[str, Any], spell: Spell) -> Reason:
    what = "k-means on the filled views"
    if facts["same"]:
        return Reason(f"{what} finds the same clusters ({facts['shared']:.0%} of the samples).", "")
    ours, theirs = (f"{facts[name]:.2f}" for name in ("ours", "theirs"))
    better = "as well" if ours == theirs else "better" if facts["ours"] > facts["theirs"] else "worse"
    how = f"{better}: {ours} against {theirs}"
    return Reason(f"{what} does not find these clusters; neighbours agree with ours {how}.", "")


def listed(labels: list[Any]) -> str:
    """Clusters by their labels."""
    shown = [str(one) for one in labels[:6]] + ["others"] * (len(labels) > 6)
    return f"cluster {shown[0]}" if len(shown) == 1 else f"clusters {', '.join(shown[:-1])} and {shown[-1]}"


_WORDS: Mapping[str, Callable[[Mapping[str, Any], Spell], Reason]] = {
    "batch": _batch, "continuum": _continuum, "dissolves": _dissolves, "range_end": _range_end, "outliers": _outliers,
    "untested": _untested,
    "one_view": _one_view, "unequal": _unequal, "k-means": _kmeans, "structureless": _continuum,
}  # fmt: skip
