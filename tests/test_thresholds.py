"""Where the rules that decide without labels draw the line: each bound, from both sides."""

from __future__ import annotations

import math
from itertools import count

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from test_decisions import SMALL, FixedClusters, Looked, samples_for
from training_tools import train, train_replicates
from viewfuse.engine import replicates as passes
from viewfuse.engine.replicates import replicate_seeds
from viewfuse.engine.training import JointStage
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl import stages as early_stopping
from viewfuse.methods.urrl.config import Config, Epochs
from viewfuse.methods.urrl.stages import EarlyStopping, embed_stored
from viewfuse.neighbors.index import NO_NEIGHBOR
from viewfuse.selection import scores
from viewfuse.selection.scores import Merit

pytestmark = pytest.mark.usefixtures("never_still")

SOMEBODY = torch.zeros(12, 1, 1, dtype=torch.int64)
STILL = early_stopping._STILL


def seen_stage(monkeypatch, agreements, scored=None, entropies=None):
    """A stage whose clusters have these scores at one evaluation after another."""
    even = iter(entropies or [1.0] * len(agreements))
    monkeypatch.setattr(early_stopping, "size_entropy", lambda *_: next(even))
    agreed, pure = iter(agreements), iter(scored or [1.0] * len(agreements))
    monkeypatch.setattr(early_stopping, "merits", lambda *_: [Merit(next(pure), next(agreed), 1.0)])
    stage = JointStage()
    watch = EarlyStopping(FixedClusters(), Looked(), SOMEBODY, stage)
    for epoch in range(len(agreements)):
        watch.evaluate(epoch, torch.zeros(12, 1))
    return stage


@pytest.mark.parametrize(
    ("agreements", "ended"),
    [
        ([0.5, 0.455], ""),
        ([0.5, 0.445], "the neighbour agreement of the clusters fell from 0.500 to 0.445"),
        ([0.4, 0.5, 0.46, 0.445], "the neighbour agreement of the clusters fell from 0.500 to 0.445"),
    ],
)
def test_a_stage_is_ended_where_the_agreement_falls_too_far(monkeypatch, agreements, ended):
    assert seen_stage(monkeypatch, agreements).ended == ended


@pytest.mark.parametrize(("loss", "kept"), [(0.0028, 2), (0.0032, 1)])
def test_among_states_as_good_as_the_best_the_last_is_kept(monkeypatch, loss, kept):
    assert seen_stage(monkeypatch, [0.3, 0.31, 0.31 - loss]).kept == kept


def test_losses_are_counted_from_the_best_and_do_not_add_up(monkeypatch):
    assert seen_stage(monkeypatch, [0.3, 0.298, 0.296]).kept == 1


def test_a_gain_renews_the_patience(monkeypatch):
    stage = seen_stage(monkeypatch, [0.3, 0.3, 0.3, 0.3031, *[0.303] * 8])
    assert (list(stage.seen), stage.kept, stage.settled) == ([*range(7)], 6, True)


def test_small_gains_add_up_from_the_last_that_counted(monkeypatch):
    stage = seen_stage(monkeypatch, [0.3, 0.3011, 0.3022, 0.3033, 0.3044, 0.305, 0.306, 0.307])
    assert (list(stage.seen), stage.kept, stage.settled) == ([*range(7)], 6, True)


def test_a_state_that_scores_less_does_not_renew_the_patience(monkeypatch):
    stage = seen_stage(monkeypatch, [0.3, 0.31, 0.32, 0.33, 0.34], [0.9, 0.8, 0.8, 0.8, 0.8])
    assert (list(stage.seen), stage.settled) == ([*range(4)], True)


def test_a_state_that_scores_less_sets_no_mark_for_those_that_follow(monkeypatch):
    stage = seen_stage(monkeypatch, [0.3, 0.34, 0.3], [0.9, 0.8, 0.9])
    assert stage.kept == 2


@pytest.mark.parametrize(("scored", "kept"), [([0.9, 0.851], 1), ([0.9, 0.849], 0), ([0.9, 0.87, 0.849], 1)])
def test_a_state_whose_clusters_score_less_than_at_first_is_not_kept(monkeypatch, scored, kept):
    assert seen_stage(monkeypatch, [0.3, 0.4, 0.5][: len(scored)], scored).kept == kept


@pytest.mark.parametrize(
    ("scored", "entropies", "kept"),
    [
        ([0.9, 0.899], [0.97, 0.959], 0),
        ([0.9, 0.899], [0.97, 0.961], 1),  # sizes are hardly less even
        ([0.9, 0.9], [0.97, 0.5], 1),  # merged, and no less pure
        ([0.9, 0.901, 0.899], [0.97, 0.9, 0.9], 1),
        ([0.9, 0.88, 0.87], [0.5, 0.97, 0.491], 2),  # from before the stage on, not from its most even state
    ],
)
def test_a_state_that_is_merged_and_less_pure_is_not_kept(monkeypatch, scored, entropies, kept):
    assert seen_stage(monkeypatch, [0.3, 0.4, 0.5][: len(scored)], scored, entropies).kept == kept


@pytest.mark.parametrize(("sizes", "n_clusters"), [((5, 3, 1), 3), ((5, 3, 1), 4), ((9,), 2), ((9,), 1)])
def test_the_entropy_of_sizes_is_that_over_equal_sizes(sizes, n_clusters):
    labels = torch.cat([torch.full((size,), c) for c, size in enumerate(sizes)])
    shares = [size / 9 for size in sizes]
    literal = -sum(share * math.log(share) for share in shares) / math.log(n_clusters) if n_clusters > 1 else 1.0
    assert scores.size_entropy(labels, n_clusters) == pytest.approx(literal)


def test_the_best_state_is_kept_as_it_was():
    network, stage = Looked(), JointStage()
    neighbor_ids = torch.tensor([[[(i + 4) % 12]] for i in range(12)])
    watch = EarlyStopping(FixedClusters(), network, neighbor_ids, stage)
    watch.evaluate(0, torch.zeros(12, 1))
    network.labels.copy_(torch.arange(12) // 3)  # weights are changed where they are
    watch.evaluate(1, torch.zeros(12, 1))
    watch.restore_best()
    assert stage.kept == 0
    assert torch.equal(network.labels, torch.arange(12) % 4)


def settled_by(monkeypatch, moved, *, neighbor_ids=None, **options):
    """Whether a stage was ended after so many of 2,000 samples changed their clusters, at one look after another."""
    monkeypatch.setattr(early_stopping, "_STILL", STILL)
    monkeypatch.setattr("viewfuse.methods.urrl.stages.merits", lambda *_: [Merit(1.0, next(rising), 1.0)])
    labels, stage, found, rising = torch.arange(2000) % 4, JointStage(), [], count()
    someone = torch.zeros(2000, 1, 1, dtype=torch.int64) if neighbor_ids is None else neighbor_ids
    watch = EarlyStopping(FixedClusters(), Looked(), someone, stage, **options)
    watch.judge(0, labels)
    for epoch, n in enumerate(moved, 1):
        labels = labels.clone()
        labels[: 4 * n : 4] += 1  # from the first cluster to the second, and so on
        watch.judge(epoch, labels)
        found.append(stage.settled)
    assert stage.kept == len(moved)
    return found


def test_a_stage_is_ended_where_hardly_any_cluster_changes(monkeypatch):
    assert settled_by(monkeypatch, [16, 14]) == [False, True]
    assert settled_by(monkeypatch, [14]) == [True]


def test_changes_are_counted_from_the_last_look(monkeypatch):
    assert settled_by(monkeypatch, [16, 16, 16, 0]) == [False, False, False, True]


def test_where_nothing_can_judge_or_nobody_asks_for_it_a_stage_goes_on(monkeypatch):
    alone = torch.full((2000, 1, 1), NO_NEIGHBOR)
    assert settled_by(monkeypatch, [16, 0, 0], neighbor_ids=alone) == [False] * 3
    assert settled_by(monkeypatch, [16, 0, 0], settles=False) == [False] * 3


def test_a_stage_whose_clusters_were_emptied_is_not_settled(monkeypatch):
    monkeypatch.setattr(early_stopping, "_STILL", 1.0)
    stage = JointStage()
    watch = EarlyStopping(FixedClusters(), Looked(), SOMEBODY, stage)
    watch.judge(0, torch.arange(12) % 4)
    watch.judge(1, torch.zeros(12, dtype=torch.int64))
    assert (stage.settled, stage.ended) == (False, "3 of 4 clusters were emptied")


def test_where_there_are_no_neighbours_the_last_state_is_kept():
    stage = JointStage()
    watch = EarlyStopping(FixedClusters(), Looked(), torch.full((12, 1, 1), NO_NEIGHBOR), stage)
    for epoch in range(6):
        watch.evaluate(epoch, torch.zeros(12, 1))
    assert (stage.kept, stage.stopped) == (5, False)


def test_networks_side_by_side_end_with_their_best_clusters(monkeypatch):
    rising, embedded, embed = count(), [], stages.embed_all
    monkeypatch.setattr(passes, "MAX_STACKED", {"cpu": 2})
    monkeypatch.setattr("viewfuse.methods.urrl.stages.merits", lambda *_: [Merit(1.0, next(rising), 1.0)])
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(1, 8))
    monkeypatch.setattr(stages, "embed_all", lambda own: embedded.append(embed(own)) or embedded[-1])
    settings = Config(n_clusters=3, n_heads=2, **SMALL)
    runs = train_replicates([samples_for(settings)] * 2, settings, [0, 1])
    for run, last in zip(runs, embedded[-1], strict=True):
        assert run.joint_stage.kept == 9
        assert torch.allclose(embed_stored(run), last, atol=1e-4)


@pytest.mark.parametrize(("schedule", "epochs"), [pytest.param("default", 7, marks=pytest.mark.slow), ("paper", 17)])
def test_a_watched_stage_of_the_paper_lasts_as_planned(monkeypatch, schedule, epochs):
    monkeypatch.setattr("viewfuse.methods.urrl.stages.merits", lambda *_: [Merit(1.0, 0.3, 1.0)])
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(1, 16))
    settings = Config(n_clusters=3, n_heads=2, schedule=schedule, **SMALL)
    assert len(train(samples_for(settings), settings, 0).history["epoch"]) == epochs


def test_agreement_is_the_mean_over_the_others():
    labels, other = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 2, 2])
    assert scores.agreement(labels, [labels, other]) == pytest.approx((1 + adjusted_rand_score(labels, other)) / 2)
    assert scores.agreement(labels, []) is None


def test_a_sum_of_squares_that_is_half_a_percent_larger_is_larger():
    assert scores.best_start([Merit(0.5, 0.5, 1.0), Merit(0.6, 0.6, 1.0)], [10.0, 10.05]) == 0


def test_further_trainings_have_seeds_of_their_own():
    seeds = [replicate_seeds(state, 4) for state in (0, 1)]
    assert [own[0] for own in seeds] == [0, 1]
    assert len({*seeds[0], *seeds[1]}) == 8
    assert replicate_seeds(0, 2) == seeds[0][:2]


def test_a_stage_that_goes_on_remembers_how_long_it_has_waited(monkeypatch):
    monkeypatch.setattr("viewfuse.methods.urrl.stages.merits", lambda *_: [Merit(1.0, 0.3, 1.0)])
    stage = JointStage()
    first, second = (EarlyStopping(FixedClusters(), Looked(), SOMEBODY, stage) for _ in range(2))
    for epoch in range(2):
        first.evaluate(epoch, torch.zeros(12, 1))
    second.counters, second.weights = first.counters, first.weights
    for epoch in range(2, 9):
        second.evaluate(epoch, torch.zeros(12, 1))
    assert (list(stage.seen), stage.settled) == ([*range(4)], True)
