"""All sentences of ten fits, read together: none contradicts another, and each names what is the matter."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from flat import flat
from viewfuse import URRL, Views
from viewfuse.io.writers import as_json, write_labels
from viewfuse.report.comparison import Column, with_batch
from viewfuse.report.run_folder import read_run
from viewfuse.report.tables import headline, how_many, how_sure, warnings_of
from viewfuse.selection.decision_texts import advice_of, reasons_of, records, restored, words

SHORT = {"embedding_dim": 8, "hidden_dim": 16, "pretrain_epochs": 3, "joint_epochs": 1, "learning_rate": 2e-3}
SHORT |= {"scaling": "standard", "random_state": 0}
UNITS = (40.0, 0.01)


def groups(*sizes, apart=6.0, widths=(6, 7), seed=0):
    """Groups in two views of other units and offsets, in random order, and the group of each sample."""
    rng = np.random.default_rng(seed)
    kind = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return [
        unit * (rng.normal(size=(len(kind), w)) + apart * np.eye(len(sizes), w)[kind] + 7)
        for w, unit in zip(widths, UNITS, strict=True)
    ], kind


def cigars():
    """Three long groups side by side; four in ten samples lack a view."""
    rng, kind = np.random.default_rng(1), np.arange(90) % 3
    views = [np.stack([20 * rng.normal(size=90), 5 * kind + rng.normal(size=90)], axis=1) for _ in range(2)]
    for row in rng.permutation(90)[:36]:
        views[rng.integers(2)][row] = np.nan
    return views


def with_outliers():
    views, _ = groups(40, 30, 26)
    views[0][[3, 40]] += UNITS[0] * np.array([[60.0], [-80.0]])
    return views


def one_informative():
    views, _ = groups(36, 28, apart=8.0)
    return [views[0], np.random.default_rng(2).normal(size=(64, 5))]


def curve():
    rng = np.random.default_rng(3)
    place = rng.random(150)
    bent = np.stack([np.cos(3 * place), np.sin(3 * place), place], axis=1)
    return [
        bent + 0.03 * rng.normal(size=bent.shape),
        np.stack([place, place**2], axis=1) + 0.03 * rng.normal(size=(150, 2)),
    ]


def noise():
    rng = np.random.default_rng(4)
    return [rng.normal(size=(100, width)) for width in (8, 12)]


CASES = {
    "cigars": (cigars, {"n_clusters": 3}, ""),
    "clear": (lambda: groups(30, 25, 20)[0], {"n_clusters": 3}, ""),
    "noise": (noise, {"n_clusters": 3}, "Use the embedding as coordinates"),
    "sizes": (lambda: groups(90, 8, 4)[0], {"n_clusters": 3}, "Check whether the small ones are real"),
    "outliers": (with_outliers, {"n_clusters": 3}, "Look at the outliers"),
    "batch": (lambda: groups(34, 30)[0], {"n_clusters": 2}, "Fit again with plate as"),
    "joined": (lambda: groups(25, 25, 25, 25, apart=9.0)[0], {"n_clusters": 3}, ""),
    "one view": (one_informative, {"n_clusters": 2}, "quality of the other views"),
    "continuum": (curve, {"cluster_range": (2, 4)}, "Use the embedding as coordinates"),
    "end of the range": (lambda: groups(*[18] * 6, apart=9.0)[0], {"cluster_range": (2, 3)}, "Let cluster_range end"),
}
"""Per case the data, settings, and what the advice is about; none where only the level is to be judged."""
MATTERS = {"sizes": "unequal", "outliers": "outliers", "batch": "batch", "one view": "one_view",
           "continuum": "continuum", "noise": "structureless", "end of the range": "range_end"}  # fmt: skip


def written(folder, views, model):
    """The run as its page reads it."""
    write_labels(folder / "labels.csv", views, model.judge())
    facts = {"views": list(views.names), "cluster_sizes": np.bincount(model.labels_).tolist(), "params": {}}
    (folder / "summary.json").write_bytes(as_json({**facts, "decisions": model.decisions_}).encode())
    return read_run(folder)


SLOW = ("cigars", "clear", "joined", "continuum", "end of the range", "batch")
"""Those in which nothing is the matter, and those whose sentences test_trust.py and test_report_verb.py read, too."""


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if c in SLOW else c for c in CASES])
def test_no_sentence_of_a_fit_contradicts_another(case, tmp_path):
    make, settings, matter = CASES[case]
    views = Views(make())
    model = URRL(**flat(**SHORT | settings)).fit(views)
    run = written(tmp_path, views, model)
    if case == "batch":
        plates = (model.labels_ == 1).astype(float)
        run = with_batch(run, [Column("plate", ("p1", "p2"), plates)], "plate")
    trust, advice = run.trust, advice_of(run.trust)
    page = [headline(run), how_many(run), *how_sure(run, str), *warnings_of(run, str)]
    decided = [one["why"] for one in model.decisions_.values()]
    said = " ".join([*page, *decided])
    names = [one["name"] for one in trust.reasons]

    assert trust.level in ("high", "some", "none")
    assert f"Trust in these clusters \N{EN DASH} {words(trust)}." in page
    again = f"{trust.evidence['again']:.0%} of the samples"
    assert words(trust).startswith(f"{trust.level}: repeated fits would put {again}")
    assert model.decisions_["confidence"]["chosen"] == pytest.approx(trust.evidence["again"], abs=1e-6)
    assert not re.search(r"stable|doubtful|thorough|reliab", said)
    assert trust.evidence["low"] <= trust.evidence["again"] <= trust.evidence["high"]
    if trust.level == "high":
        assert not {"dissolves", "continuum", "uncertain"} & set(names)
        assert "in another way" not in said
        assert "before you rely" not in said
        assert min(one["again"] for one in trust.clusters) >= 0.5
    if trust.level == "none":
        assert advice
        assert "clusters are clear" not in said
    assert ("in another way" in said) == ("dissolves" in names)
    assert ("finds the same clusters" in said) != ("does not find these clusters" in said)
    compared = re.search(r"with ours (better|worse|as well): (\S+) against (\S+?)\.(?: |$)", said)
    if compared:
        word, ours, theirs = compared[1], float(compared[2]), float(compared[3])
        assert word == ("better" if ours > theirs else "worse" if ours < theirs else "as well")
    assert ("far from all others" in " ".join(page)) == bool(model.outliers_.any()) == ("outliers" in names)
    sizes = np.bincount(model.labels_)
    assert ("very unequal" in said) == (sizes.max() >= 10 * sizes.min())
    assert ("continuum" in names) == ("a continuum, in which" in said)
    assert ("range_end" in names) == ("this is the end of the range" in said)
    assert matter in advice
    assert not advice or page.count(advice) == 1
    assert (MATTERS[case] == names[0]) if case in MATTERS else not set(MATTERS.values()) & set(names)
    assert case != "noise" or trust.level == "none"
    assert len({one.what for one in reasons_of(trust)}) == len(names)
    assert restored(json.loads(json.dumps(records(trust))))["trust"] == restored(records(trust))["trust"]
