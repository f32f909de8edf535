"""Decisions in words: the only module that turns them into sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from viewfuse.data.filling import in_words as cells_in_words
from viewfuse.selection import decisions as kinds
from viewfuse.selection.decisions import KINDS, VALLEYS, Decision, SavedSentence, Trust
from viewfuse.utils.settings import Setting, Spell, written


def records(*decisions: Decision) -> dict[str, dict[str, Any]]:
    """Decisions by name as ``decisions_`` holds them: their data, and "why" in words."""
    return {one.name: asdict(one) | {"why": f"{label(one)}: {words(one)}"} for one in decisions}


def restored(saved: Mapping[str, Mapping[str, Any]]) -> dict[str, Decision]:
    """Decisions from their `records`; those of an older form keep the sentence that was saved with them."""
    found: dict[str, Decision] = {}
    for name, record in saved.items():
        try:
            kind = KINDS[name]
            found[name] = kind(**{one.name: record[one.name] for one in fields(kind) if one.name in record})
            words(found[name])
        except (KeyError, TypeError, ValueError, AttributeError):  # an unknown name, or other fields and evidence
            why = str(record.get("why", ""))
            found[name] = SavedSentence(record.get("chosen"), record.get("evidence") or {}, name, why)
    return found


def label(decision: Decision) -> str:
    """What people call a decision."""
    name = decision.key if isinstance(decision, SavedSentence) else decision.name
    named = {"n_clusters": "number of clusters", "pretraining": "pre-training"}
    return named.get(name, name.replace("_", " "))


def words(decision: Decision, spell: Spell = str) -> str:
    """What was decided and why, in words."""
    match decision:
        case SavedSentence(why=why):
            return why.removeprefix(f"{label(decision)}: ")
        case kinds.CellFilling(chosen=how, evidence=cells):
            source = {"neighbors": "from the nearest rows", "median": "with medians of columns"}[how] if cells else ""
            return f"filled {source}; {'; '.join(cells_in_words(*one) for one in cells.items())}" if cells else "none"
        case kinds.ViewReduction():
            return _on_reduction(decision)
        case kinds.ScalingChoice():
            return _on_scaling(decision, spell)
        case kinds.PretrainingLength(chosen=lasted, evidence=evidence, planned=planned, single=single):
            if lasted == planned:
                return f"all {lasted} epochs" if lasted else "none"
            why = "there is one cluster" if single else "the clusters are clear by then"
            if "agreement" in evidence and not single:
                why = f"trainings agree by then (adjusted Rand index {evidence['agreement']:.2f})"
            return f"{lasted} of {planned} epochs, as {why}"
        case kinds.JointStageLength():
            return _on_joint_stage(decision)
        case kinds.ClusterSource(chosen=source, evidence=scores):
            if source == "network":
                return f"those of the network {_listed(scores)}" if len(scores) > 1 else "those of the network"
            found = {
                "graph": "the graph of neighbours in all views", "tree": "the tree of its embedding",
                "hints": "the hints", "k-means": "k-means on the filled views", "earlier": "an earlier stage",
                "linkage": "average linkage of its embedding, which asks for no even sizes",
                "consensus": "a vote of the network, simple methods and the graph of neighbours",
            }[source]  # fmt: skip
            why = "more are with their class" if source == "hints" else "neighbours stay together better there"
            return f"those of {found}, which the network was taught, as {why} {_listed(scores)}"
        case kinds.Outliers(chosen=count, evidence=views, samples=n):
            far = sorted((times, name, view) for view, own in views.items() for name, times in own.items())
            worst = {name: f"{name} ({times:.0f} times in {view})" for times, name, view in far}
            named = ", ".join([*worst.values()][:-7:-1]) + (" and others" if len(worst) > 6 else "")
            lie = "lies" if count == 1 else "lie"
            return f"{count} of {n:,} samples {lie} farther from all others than usual: {named}"
        case kinds.KnownClasses(chosen=count, samples=n, agreed=agreed, unused=unused):
            there, doubted = decision.with_class, ", ".join(decision.doubtful)
            named = ", ".join(_on_class(*one, there) for one in enumerate(decision.evidence.items()))
            why = f"; doubtful, as neighbours in all of their views are elsewhere ({unused} not followed): {doubted}"
            only = "; nothing says which samples are not of the one class: name some of another, too"
            more = f"{why if doubted else ''}{only if len(decision.evidence) == 1 else ''}"
            return f"{count} of {n:,} samples, {agreed} are with their class: {named}{more}"
        case kinds.KnownPairs(chosen=count, kept=kept):
            broken = ", ".join(" and ".join(pair) for pairs in decision.broken.values() for pair in pairs)
            return f"{kept} of {count} are kept{f'; not {broken}' if broken else ''}"
        case kinds.KnownWeights(chosen=count, evidence=weights):
            least, most = (of(weights["samples"].values()) for of in (min, max))
            unequal = f" with weights from {least:.3f} to {most:.3f}" if least < most else ""
            return f"{count:,} samples are learned from{unequal} {_listed(weights['views'], 'views')}"
        case kinds.BatchEffects(chosen=batches, evidence={"before": before, "after": after}):
            alone = "".join(f"; cluster {c} is in {name} alone: confounded" for c, name in decision.alone.items())
            shared = "the adjusted mutual information of clusters and batches (0: chance, 1: the same groups)"
            both = f"{shared} is {after:z.2f}, before it was {before:z.2f}"
            return f"the effects of {len(batches)} batches were taken out; {both}{alone}"
        case kinds.KeptNumbers(chosen=kept, evidence=found):
            given = {"kept": kept, "new": decision.new, "unused": decision.unused}
            source = (
                f"{found['samples']:,} samples that {'both have' if found['by_ids'] else 'the former model placed'}"
            )
            stay = f"{found['share']:.0%} of {source} have the number that they had"
            return "; ".join([*(f"{listed(list(own))} {word}" for word, own in given.items() if own), stay])
        case kinds.Update(chosen=n_new, evidence={"samples": n_old}):
            parts = [f"{n_new:,} new samples joined {n_old:,}; {len(decision.moved):,} of these moved"]
            for word, own in (("new", [one["label"] for one in decision.founded]), ("empty", list(decision.empty))):
                parts += [f"{listed(own)} {'are' if own[1:] else 'is'} {word}"] if own else []
            return "; ".join(parts + [f"{len(decision.waiting):,} samples fit nowhere yet"] * bool(decision.waiting))
        case kinds.MeanConfidence(n_clusters=1):
            return "not judged, as there is one cluster"
        case kinds.MeanConfidence(chosen=mean, evidence={"again": again}):
            what = "the chance that a sample is in the same cluster again if the fit is repeated"
            others = f"other stages and trainings of this fit put {again:.0%} there, where luck counts as 0%"
            return f"{mean:.2f} on average: {what} ({others})"
        case kinds.MeanConfidence(chosen=mean, evidence=evidence) if not evidence:
            return f"{mean:.2f} on average: the paper's soft labels, which are not calibrated"
        case Trust(n_clusters=1):
            few = any(one["name"] == "untested" for one in decision.reasons)
            return f"not judged, as there is one cluster{', and too few samples to look for more' if few else ''}"
        case Trust(chosen=word, evidence=facts, refits=refits):
            source = f"measured by {refits} repeated fits" if refits else "an estimate"
            found = f"{facts['again']:.0%} of the samples ({100 * facts['low']:.0f} to {100 * facts['high']:.0f}%)"
            again = f"repeated fits {'' if refits else 'would '}put {found} into the same clusters"
            return f"{word}: {again} ({source}; luck alone would put {facts['chance']:.0%} there)"
        case kinds.ClusterNumber():
            return _on_number(decision)
    raise TypeError(f"a decision of an unknown kind: {decision!r}")


def _joined(names: Sequence[Any]) -> str:
    """Names as a sentence lists them."""
    *most, last = map(str, names)
    return f"{', '.join(most)} and {last}" if most else last


def _listed(numbers: Mapping[str, float], what: str = "score") -> str:
    return f"({what}: {', '.join(f'{name} {number:.3f}' for name, number in numbers.items())})"


def _on_reduction(decision: kinds.ViewReduction) -> str:
    steps, reduced = {
        "none": "principal components", "standard": "principal components of standardised columns",
        "log1p": "logarithms, principal components", "log": "equal row sums, logarithms, principal components",
        "terms": "tf-idf, unit length, singular vectors", "links": "even sums, weighted singular vectors",
        "weighted": "logarithms, unit length, singular vectors",
    }, []  # fmt: skip
    for name in (name for name, how in decision.chosen.items() if how != "none"):
        (before, after), facts = decision.columns[name], decision.evidence[name]
        how = f"{steps[facts['transform']]}; {facts['kept']:.0%} of the variance"
        reduced.append(f"{name}, {facts['name']}, from {before:,} to {after} columns ({how})")
    return "; ".join(reduced) or ("none, as asked" if decision.asked else "none, every view is narrow enough")


def _on_scaling(decision: kinds.ScalingChoice, spell: Spell) -> str:
    chosen, diverged = decision.chosen, decision.diverged
    scores = dict(sorted(decision.evidence.items(), key=lambda pair: -pair[1]))
    if decision.asked:
        why = ", as asked"
    elif decision.single:
        why = ", as with one cluster no other can be better"
    elif decision.clear:
        why = "; others were not tried, as its clusters are clear"
    elif decision.quick:
        why = f"; others were not tried ({written(Setting('effort', 'quick'), spell)})"
    elif len(scores) == 1:
        why = ", the only one that could be trained" if diverged else ", as all others do the same here"
    else:
        is_best = scores[chosen] >= max(scores.values())
        subject = "its clusters agree best" if is_best else "no other gives clusters that agree clearly better"
        why = f", as {subject} with the neighbours in all views {_listed(scores)}"
    mixing = ""
    if chosen == "mixed":
        whole = ", ".join(decision.as_a_whole)
        mixing = f"; one scale for all columns of {whole}" if whole else "; every column has its own scale"
    elif len(scores) > 1 and "mixed" not in (*scores, *diverged):
        mixing = "; mixed was not tried, as it does the same as standard here"
    failed = f"; training diverged with {' and '.join(diverged)}" if diverged else ""
    return f"{chosen}{why}{failed}{mixing}"


def _on_joint_stage(decision: kinds.JointStageLength) -> str:
    kept, lasted = decision.chosen, decision.lasted
    if decision.single and not lasted:
        return "none, as there is one cluster"
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


def _on_class(cluster: int, known: tuple[str, Sequence[str]], there: Mapping[str, int]) -> str:
    """Whether a cluster is a known class; of models of before only which it should be is known."""
    name, ids = known
    if name not in there:
        return f"cluster {cluster} is {name}"
    return f"cluster {cluster} is {'' if 2 * there[name] > len(ids) else 'NOT '}{name} ({there[name]} of {len(ids)})"


def _on_number(decision: kinds.ClusterNumber) -> str:
    count, standing = decision.islands, [one for one in decision.splits if one["stands"]]
    why = {
        "clusters": _on_splits(decision, standing) if standing else "",
        "few": ", as there are too few samples to look for more",
        "one": ", as samples fall apart no more clearly than those of a Gaussian of the same covariance",
        "continuum": ": a continuum, in which samples at the borders lie as densely as all others; cut it where you "
        "like, by asking for a number",
    }[decision.kind]
    more = f"; {count} cluster{'s' if count > 1 else ''} of k-means fell apart, too" if count else ""
    if alone := decision.alone:
        where = " and ".join(dict.fromkeys(alone))
        more += f", {'' if len(alone) == count else f'{len(alone)} of them '}in {where} only"
    if decision.unasked:
        were = "were" if decision.unasked[1:] else "was"
        more += f"; {_joined(decision.unasked)} {were} not asked, as categories form groups of their own"
    end = {
        "": "", "largest": "; this is the end of the range, and the data say more",
        "known": "; what is known of the samples needs as many, and the data say fewer",
        "smallest": "; this is the beginning of the range, and the data say fewer",
    }[decision.end]  # fmt: skip
    none = ", no clusters were found" if decision.chosen == 1 else ""
    return f"{decision.chosen}{none}{why}{more}{end}"


def _on_splits(decision: kinds.ClusterNumber, standing: Sequence[Mapping[str, Any]]) -> str:
    worst, count = max(one["p_value"] for one in standing), len(standing)
    splits = "1 split of the tree stands" if count == 1 else f"{count} splits of the tree stand"
    found = f", as {splits}: clearer than in a Gaussian of the same covariance (p {p_value(worst, '= ')})"
    known = [[own for own in one["held_out"].values() if own is not None] for one in standing]
    found += ", and neighbours in views left out agree" if any(known) else ""  # of one view nothing is left out
    lonely = sum(bool(own) and max(own) < 0.1 for own in known)  # without any view that tells, this is not known
    found += f"; {lonely} of the splits {'is' if lonely == 1 else 'are'} seen in one view only" if lonely else ""
    if not decision.levels:
        return found
    coarser = "coarser levels" if decision.levels[1:] else "a coarser level"
    return f"{found}; {_joined(decision.levels)} clusters hold as well, as {coarser}"


def split_fell(split: Mapping[str, Any]) -> str:
    """Why a split of `ClusterNumber` does not stand; empty where it does."""
    if split["stands"]:
        return ""
    if split["p_value"] >= split["level"]:
        return "data without structure are split as clearly: p is not below its level"
    if split.get("valley") is not None and split["valley"] >= VALLEYS * split["level"]:
        return "samples are not rarer at the border: no valley"
    return "too weak beside the strongest splits, or beside the agreement in data without structure"


def p_value(value: float, sign: str = "") -> str:
    """A p-value, short, behind a sign such as "= "; of tiny ones that they are."""
    return f"{sign}{value:.2g}" if value >= 1e-4 else "< 0.0001"


class Reason(NamedTuple):
    """A reason in words; `advice` is empty where there is nothing to do."""

    what: str
    advice: str


_CONTINUUM = ("The data hold together hardly better than a Gaussian: they may be a continuum.",
              "Use the embedding as coordinates instead of the clusters as kinds.")  # fmt: skip
_REASONS = {
    "batch": ("The clusters follow {column} (adjusted mutual information {information:.2f}, p {p:.3f}).",
              "Fit again with {column} as {ask_batch}, or compare clusters within each."),
    "continuum": _CONTINUUM,
    "structureless": _CONTINUUM,
    "dissolves": ("Repeated fits would divide {clusters} in another way.",
                  "Look at these first: they may be parts of others, or several kinds together."),
    "uncertain": ("{count:,} of {samples:,} samples could be in more than one cluster.",
                  "Run `viewfuse validate` (in Python `model.validate()`), which measures how sure the clusters are."),
    "unsure": ("{count:,} of {samples:,} samples could be in more than one cluster, also after repeated fits.",
               "Rely on the samples that are not uncertain only, or try fewer clusters."),
    "untested": ("There are too few samples to find out how many clusters there are.",
                 "Ask for a number of clusters, such as {ask_two}, if you expect some."),
    "range_end": ("{number} is the largest number of clusters that was tried.",
                  "Let {ask_range} end at a larger number."),
    "outliers": ("{count} of {samples:,} samples {lie} far from all others.",
                 "Look at the outliers, and fit again without those that are errors."),
    "one_view": ("One view decides: only neighbours in {view} are in the same clusters ({agreement:.2f} there, at most "
                 "{others:.2f} in others).", "Check the units and the quality of the other views."),
    "unequal": ("The clusters are very unequal: the largest has {most:,} samples, the smallest {least:,}.", "Check "
                "whether the small ones are real, and the large ones whole: compare one cluster more and one less."),
    "same": ("k-means on the filled views finds the same clusters ({shared:.0%} of the samples).", ""),
    "k-means": ("k-means on the filled views does not find these clusters; neighbours agree with ours {how}: "
                "{ours:.2f} against {theirs:.2f}.", ""),
}  # fmt: skip


def reasons_of(trust: Trust, spell: Spell = str) -> list[Reason]:
    """The reasons in words, the gravest first."""
    asked = {"batch": Setting("batch"), "two": Setting("n_clusters", 2), "range": Setting("cluster_range")}
    settings, found = {f"ask_{name}": written(one, spell) for name, one in asked.items()}, []
    for one in trust.reasons:
        facts = {**settings, **one, "lie": "lies" if one.get("count") == 1 else "lie"}
        if "clusters" in facts:
            facts["clusters"] = listed(facts["clusters"])
        if "theirs" in facts:
            as_well = f"{facts['ours']:.2f}" == f"{facts['theirs']:.2f}"
            facts["how"] = "as well" if as_well else "better" if facts["ours"] > facts["theirs"] else "worse"
        measured = "unsure" if trust.refits and facts["name"] == "uncertain" else facts["name"]
        what, advice = _REASONS["same" if facts.get("same") else measured]
        found.append(Reason(what.format_map(facts), advice.format_map(facts)))
    return found


def advice_of(trust: Trust, spell: Spell = str) -> str:
    """The one thing to do first."""
    own = next((one.advice for one in reasons_of(trust, spell) if one.advice), "")
    if own or trust.chosen == "high" or trust.n_clusters == 1:
        return own
    if trust.refits:
        return "Check these clusters in another way, or try another number of clusters."
    return "Repeat the fit (`validate`) before you rely on them, or try another number of clusters."


def listed(labels: list[Any]) -> str:
    """Clusters by their labels."""
    shown = [str(one) for one in labels[:6]] + ["others"] * (len(labels) > 6)
    return f"cluster{'s' if shown[1:] else ''} {_joined(shown)}"
