"""How the number of clusters is chosen: on which samples, with which training, from which evidence."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import make_blobs
from run_folders import SPLITS
from schedule_tools import CPU, TINY, seed_of, stored_samples
from viewfuse import Diverged, Views
from viewfuse.fitted.model import Source
from viewfuse.methods import choosing_k
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.training import init_state
from viewfuse.selection.cluster_number import RANGE, without_view
from viewfuse.selection.kmeans import filled_table
from viewfuse.selection.tree import principal


def test_the_number_of_clusters_is_chosen_on_some_samples_at_random(monkeypatch):
    monkeypatch.setattr(choosing_k, "_ROWS", 40)
    seen = {}
    monkeypatch.setattr(choosing_k, "evident_splits", lambda run, names: seen.update(run=run, names=names) or SPLITS)

    def pretrained(source, config, *rest, **ways):
        seen.update(rest=rest, ways=ways)
        return SimpleNamespace(source=source, config=config)

    monkeypatch.setattr(choosing_k, "pretrained", pretrained)
    views = Views(make_blobs(60, 3)[0])
    settings = Config(n_clusters=7, **TINY)
    kept = SimpleNamespace(part=lambda name: f"part {name}")
    found = choosing_k.choose_n_clusters(views, settings, (1, 2), "standard", 9, CPU, checkpoint=kept, threads=3)
    rows = np.sort(np.random.default_rng([9, 3]).choice(60, 40, replace=False))
    assert found.run.source.reduced.ids.tolist() == views.ids[rows].tolist()
    assert found.run.config.n_clusters == 1
    assert seen["rest"] == ("standard", 9, CPU)
    assert (seen["ways"]["checkpoint"], seen["ways"]["threads"]) == ("part choice", 3)
    assert list(seen["names"]) == list(views.names)
    assert (found.decision.chosen, found.decision.end, found.decision.splits) == (2, "largest", SPLITS)


def test_two_and_a_half_thousand_samples_are_enough_to_choose():
    assert [len(choosing_k._drawn(Views({"a": np.ones((n, 1))}), 0)) for n in (2_500, 2_501)] == [2_500] * 2
    assert RANGE == (1, 200)


@pytest.mark.usefixtures("three_scalings")
def test_a_scaling_that_diverges_gives_way_to_the_next(monkeypatch):
    events = []

    def pretrain(runs, until, **ways):
        events.append((until, [run.seed for run in runs], float(runs[0].stored.values[0].min()) >= 0))
        runs[0].diverged = "it broke" if len(events) < 3 else ""

    monkeypatch.setattr(choosing_k, "pretrain", pretrain)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 4)
    source = Source.of(Views(make_blobs(60, 3)[0]), "neighbors", "auto")
    settings = Config(n_clusters=1, **TINY)
    assert choosing_k.pretrained(source, settings, "auto", 5, CPU).seed == seed_of(5, 2)
    assert events == [(4, [5], False), (4, [seed_of(5, 1)], False), (4, [seed_of(5, 2)], True)]
    assert choosing_k.pretrained(source, settings, "minmax", 5, CPU).seed == 5
    events.clear()
    with pytest.raises(Diverged, match="it broke"):
        choosing_k.pretrained(source, settings, "minmax", 5, CPU)


def test_a_network_looks_at_its_samples_with_all_views_and_without_each(monkeypatch):
    settings = Config(n_clusters=1, **TINY)
    run = init_state(stored_samples(30, settings), settings, 11)
    monkeypatch.setattr(choosing_k, "embed", lambda method, network, own, stored: torch.cat(
        [*own.values, stored.values[0]], dim=1))  # fmt: skip
    look, stored = choosing_k.look_of(run), run.stored
    seen = [stored, *(without_view(stored, v) for v in range(len(stored.values)))]
    wanted = [principal(torch.cat([*own.values, stored.values[0]], dim=1)) for own in seen]
    assert torch.equal(torch.stack(wanted), torch.stack([look.embedding, *look.hidden]))
    assert torch.equal(look.table, filled_table(stored, torch.arange(30)))
    assert torch.equal(look.present, stored.present)


def test_equal_rows_have_no_principal_components():
    assert not principal(torch.full((5, 3), 0.1)).any()
    assert not principal(torch.full((2, 3), 0.1)).any()
