"""How the number of clusters is chosen: on which samples, with which training, from which evidence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from conftest import make_blobs
from run_folders import SPLITS
from schedule_tools import CPU, TINY, seed_of, stored_samples
from viewfuse import Diverged, Views
from viewfuse.fitted.model import Source
from viewfuse.methods import number_of_clusters
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.stages import init_state
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection.decision_texts import records
from viewfuse.selection.kmeans import filled_table
from viewfuse.selection.linkage import cluster_tree, principal
from viewfuse.selection.split_evidence import Look, Split
from viewfuse.selection.split_tree import RANGE, number_decision, without_view


def test_the_number_of_clusters_is_chosen_on_some_samples_at_random(monkeypatch):
    monkeypatch.setattr(number_of_clusters, "_ROWS", 40)
    seen = {}

    def pretrained(source, config, *rest, **ways):
        seen.update(rest=rest, ways=ways)
        return SimpleNamespace(source=source, config=config)

    monkeypatch.setattr(number_of_clusters, "pretrained", pretrained)
    monkeypatch.setattr(number_of_clusters, "number_of", lambda run, *rest: (run, *rest))
    source = Source.of(Views(make_blobs(60, 3)[0]), "neighbors", "auto")
    settings = Config(n_clusters=7, **TINY)
    kept = SimpleNamespace(part=lambda name: f"part {name}")
    decision, run = number_of_clusters.choose_n_clusters(
        source, settings, (1, 9), "standard", 9, CPU, checkpoint=kept, threads=3
    )
    rows = np.sort(np.random.default_rng([9, 3]).choice(60, 40, replace=False))
    assert run.source.reduced.ids.tolist() == source.reduced.ids[rows].tolist()
    assert run.config.n_clusters == 1
    assert seen["rest"] == ("standard", 9, CPU)
    assert (seen["ways"]["checkpoint"], seen["ways"]["threads"]) == ("part choice", 3)
    assert decision == (run, source.reduced.names, (1, 5))


@pytest.mark.parametrize(("n", "trained"), [(15, False), (16, True)])
def test_sixteen_samples_are_the_fewest_that_are_looked_at(monkeypatch, n, trained):
    monkeypatch.setattr(number_of_clusters, "pretrained", lambda *given, **ways: "a network")
    monkeypatch.setattr(number_of_clusters, "number_of", lambda run, names, possible: number_decision([], n, possible))
    source = Source.of(Views(make_blobs(n, 3, missing=0.0)[0]))
    number, run = number_of_clusters.choose_n_clusters(source, Config(**TINY), (2, 9), "standard", 9, CPU)
    assert (number.kind, run) == ("one" if trained else "few", "a network" if trained else None)


def clinical_set(n: int = 60, *, alone: int = 0):
    """Two measured views and one of age and sex; the last `alone` samples have this one only."""
    a, b, _ = make_blobs(n, 3, missing=0.0)[0]
    ids = [f"s{i}" for i in range(n)]
    rng = np.random.default_rng(5)
    clinical = pd.DataFrame({"age": rng.normal(60, 11, n), "sex": rng.choice(["male", "female"], n)}, index=ids)
    measured = {"rna": pd.DataFrame(a, ids), "protein": pd.DataFrame(b, ids)}
    return Views({"clinical": clinical, **{name: view.iloc[: n - alone] for name, view in measured.items()}})


def test_age_and_sex_are_not_asked_how_many_clusters_there_are(monkeypatch):
    decision = number_decision([], 20, (1, 9))
    monkeypatch.setattr(number_of_clusters, "number_of", lambda run, names, possible: decision)
    sources = []
    monkeypatch.setattr(number_of_clusters, "pretrained", lambda source, *rest, **ways: sources.append(source))
    views = clinical_set(alone=7)
    number, run = number_of_clusters.choose_n_clusters(
        Source.of(views), Config(n_clusters=7, **TINY), RANGE, "standard", 9, CPU
    )
    (source,) = sources
    assert (source.reduced.names, source.reduced.ids.tolist()) == (("rna", "protein"), views.ids[:53].tolist())
    assert all(np.array_equal(own, a[:53]) for own, a in zip(source.reduced.arrays, views.arrays[1:], strict=True))
    assert len(source.reduction.front_ends) == len(source.reduced.widths) == len(source.reduced.offsets) == 2
    assert (list(number.unasked), run) == (["clinical"], None)  # a network of other views is of no use to the fit
    assert "; clinical was not asked" in records(number)["n_clusters"]["why"]


@pytest.mark.parametrize(
    "case", ["most samples have nothing else", "there is nothing else", "many combinations", "few"]
)
def test_views_of_categories_are_asked_where(case):
    views = {
        "most samples have nothing else": clinical_set(alone=31),
        "there is nothing else": Views({"a": np.repeat([[0.0, 1.0], [1.0, 0.0]], 30, axis=0)}),
        "many combinations": Views({"a": np.eye(60)[:, :20], "b": make_blobs(60, 3)[0][0]}),
        "few": Views(
            {
                "a": np.hstack([np.eye(2)[np.arange(60) % 2], make_blobs(60, 3, missing=0.0)[0][1]]),
                "b": np.ones((60, 1)),
            }
        ),
    }[case]
    source = Source.of(views)
    assert number_of_clusters.without_categories(source) == (source, [])


@pytest.mark.parametrize(("within", "chosen", "more"), [((1, 200), 4, 1), ((1, 3), 3, 0), ((1, 2), 2, 0)])
def test_a_cluster_of_k_means_that_is_two_islands_is_one_more(monkeypatch, within, chosen, more):
    """Four groups, of which the tree saw three: k-means then joins two, wherever they lie."""
    rng = np.random.default_rng(3)
    groups = np.repeat(np.arange(4), 30)
    points = torch.from_numpy(rng.normal(size=(120, 2)) + 30.0 * np.array([[0, 0], [9, 0], [0, 9], [1, 0]])[groups])
    points = points.float()
    stored = index_training_set([points, 100 * points.flip(1)], torch.ones(120, 2, dtype=torch.bool), 9)
    look = Look(points, points[None].repeat(2, 1, 1), stored.values, stored.present, points)
    three = [Split(**SPLITS[0]), Split(**{**SPLITS[0], "parent": 0})]
    seen = []
    monkeypatch.setattr(number_of_clusters, "look_of", lambda run: look)
    monkeypatch.setattr(number_of_clusters, "splits_tested", lambda *given: seen.append(given) or three)
    found = number_of_clusters.number_of(SimpleNamespace(stored=stored, seed=2**32 + 5), ["a", "b"], within)
    assert (found.chosen, found.islands, list(found.alone)) == (chosen, more, [])
    (tree, looked, names, generator), *others = seen
    assert (looked, names, generator.initial_seed(), others) == (look, ["a", "b"], 2**32 + 5, [])
    assert np.array_equal(tree.merges, cluster_tree(points, stored.neighbor_ids, 5).merges)


def test_two_and_a_half_thousand_samples_are_enough_to_choose():
    assert [len(number_of_clusters._drawn(Views({"a": np.ones((n, 1))}), 0)) for n in (2_500, 2_501)] == [2_500] * 2
    assert RANGE == (1, 200)


@pytest.mark.usefixtures("three_scalings")
def test_a_scaling_that_diverges_gives_way_to_the_next(monkeypatch):
    events = []

    def pretrain(runs, until, **ways):
        events.append((until, [run.seed for run in runs], float(runs[0].stored.values[0].min()) >= 0))
        runs[0].diverged = "it broke" if len(events) < 3 else ""

    monkeypatch.setattr(number_of_clusters, "pretrain", pretrain)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 4)
    source = Source.of(Views(make_blobs(60, 3)[0]), "neighbors", "auto")
    settings = Config(n_clusters=1, **TINY)
    assert number_of_clusters.pretrained(source, settings, "auto", 5, CPU).seed == seed_of(5, 2)
    assert events == [(4, [5], False), (4, [seed_of(5, 1)], False), (4, [seed_of(5, 2)], True)]
    assert number_of_clusters.pretrained(source, settings, "minmax", 5, CPU).seed == 5
    events.clear()
    with pytest.raises(Diverged, match="it broke"):
        number_of_clusters.pretrained(source, settings, "minmax", 5, CPU)


def test_a_network_looks_at_its_samples_with_all_views_and_without_each(monkeypatch):
    settings = Config(n_clusters=1, **TINY)
    run = init_state(stored_samples(30, settings), settings, 11)
    monkeypatch.setattr(number_of_clusters, "embed", lambda method, network, own, stored: torch.cat(
        [*own.values, stored.values[0]], dim=1))  # fmt: skip
    look, stored = number_of_clusters.look_of(run), run.stored
    seen = [stored, *(without_view(stored, v) for v in range(len(stored.values)))]
    wanted = [principal(torch.cat([*own.values, stored.values[0]], dim=1)) for own in seen]
    assert torch.equal(torch.stack(wanted), torch.stack([look.embedding, *look.hidden]))
    assert torch.equal(look.table, filled_table(stored, torch.arange(30)))
    assert torch.equal(look.present, stored.present)


def test_equal_rows_have_no_principal_components():
    assert not principal(torch.full((5, 3), 0.1)).any()
    assert not principal(torch.full((2, 3), 0.1)).any()
