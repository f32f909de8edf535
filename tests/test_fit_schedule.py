"""What a fit trains and when: lists of events by hand, and what it says of its trainings written out."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import reference
import reference_selection as literal
from conftest import make_blobs
from flat import flat
from schedule_tools import CPU, GROUPS, TINY, run_past, seed_of, stored_samples
from viewfuse import URRL, Views
from viewfuse.engine.training import Progress
from viewfuse.fitted.model import Source
from viewfuse.methods.urrl import fit as fit_module
from viewfuse.methods.urrl import scaling_search, stages
from viewfuse.methods.urrl.config import Config, Epochs
from viewfuse.methods.urrl.network import fit_bytes
from viewfuse.methods.urrl.scaling_search import Search, check_memory, take_over
from viewfuse.methods.urrl.stages import embed_stored, init_state
from viewfuse.selection import rules
from viewfuse.selection.scores import Merit


def fitted_events(monkeypatch, find, *, seeds=(5,), scaling="auto", breaks=(), early=4, **settings):
    """What a fit trains, by the seeds of the trainings and the epoch until which they are trained."""
    events = []

    def pretrain(runs, until, **_):
        events.append((until, [run.seed for run in runs]))
        for run in runs:
            run_past(run, until, find(run.seed))
            run.diverged = "it broke" if (until, run.seed) in breaks else ""

    monkeypatch.setattr(fit_module, "pretrain", pretrain)
    monkeypatch.setattr(fit_module, "train_jointly", lambda runs, **_: events.append(("joint", [r.seed for r in runs])))
    monkeypatch.setattr(fit_module, "_best", lambda search: search)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 4)
    monkeypatch.setattr(Config, "early_epochs", lambda self, n: early)
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(9, 6))

    def kmeans(samples, k, seed, *weights):
        assert (k, seed) == (3, seeds[0])  # the same for all trainings, so that they are compared with one partition
        return {"k-means": GROUPS}

    monkeypatch.setattr(scaling_search, "candidate_partitions", kmeans)
    monkeypatch.setattr(scaling_search, "clearly_better", lambda other, own, **_: False)
    views, config, progress = Views(make_blobs(60, 3)[0]), Config(n_clusters=3, **TINY, **settings), Expected()
    (chosen,) = fit_module.fit_models([Source.of(views)], config, scaling, [list(seeds)], CPU, progress=progress)
    return events, chosen, progress.epochs


class Expected(Progress):
    """Remembers how many epochs are said to come."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def expect(self, epochs):
        self.epochs.append(epochs)


def clear(seed):
    """Of 60 samples 55 are where k-means puts them: 0.875 above chance for three clusters, 0.833 for two."""
    return np.where(np.arange(60) < 55, GROUPS + 1, GROUPS + 2) % 3


def unclear(seed):
    return np.random.default_rng(seed).integers(3, size=60)


@pytest.mark.usefixtures("three_scalings")
class TestWhatIsTrained:
    def test_clusters_of_small_sets_that_are_clear_early_need_no_trial(self, monkeypatch):
        events, _, _ = fitted_events(monkeypatch, clear, early=1)
        assert events == [(1, [5]), (4, []), (4, []), (9, []), ("joint", [5])]

    def test_clusters_that_are_not_clear_early_have_their_trial(self, monkeypatch):
        events, _, _ = fitted_events(monkeypatch, unclear, early=1)
        assert events[:2] == [(1, [5]), (4, [5])]

    def test_clear_clusters_need_no_other_scaling_and_no_more_epochs(self, monkeypatch):
        events, chosen, expected = fitted_events(monkeypatch, clear)
        assert expected == [3 * 4 + 5 + 6, 6]  # three scalings may be tried; one had its joint stage to come
        assert events == [(4, [5]), (4, []), (9, []), ("joint", [5])]
        assert (chosen.clear, bool(chosen.scalers), chosen.asked, chosen.failed) == (True, True, False, [])
        assert list(chosen.evidence) == ["mixed"]

    def test_all_scalings_are_tried_where_nothing_is_clear_and_one_goes_on(self, monkeypatch):
        best = seed_of(5, 1)
        events, chosen, expected = fitted_events(monkeypatch, lambda seed: clear(0) if seed == best else unclear(seed))
        assert expected == [3 * 4 + 5 + 6, 5 + 6]
        others = [best, seed_of(5, 2)]
        assert events == [(4, [5]), (4, others), (9, [best]), ("joint", [best])]
        assert (chosen.clear, bool(chosen.scalers)) == (False, False)
        assert set(chosen.evidence) == {"mixed", "standard", "minmax"}
        assert [start.tolist() for start in chosen.starts] == [
            own.tolist() for own in (clear(0), unclear(5), unclear(others[1]))
        ]
        agreed = np.mean([adjusted_rand_score(clear(0), other) for other in chosen.starts[1:]])
        assert chosen.agreed == pytest.approx(agreed)

    def test_trainings_that_agree_need_no_more_epochs_although_k_means_disagrees(self, monkeypatch):
        events, chosen, _ = fitted_events(monkeypatch, lambda seed: unclear(0))
        assert events[2:] == [(9, []), ("joint", [5])]
        assert chosen.agreed == 1.0

    def test_a_training_for_the_choice_of_k_is_taken_over_before_the_trial(self, monkeypatch):
        asked = []
        monkeypatch.setattr(fit_module, "take_over", lambda searches, begun, epochs: asked.append((begun, epochs)))
        fitted_events(monkeypatch, clear)
        fitted_events(monkeypatch, clear, scaling="minmax")
        assert asked == [(None, 4), (None, 9)]

    def test_a_number_of_epochs_that_was_given_is_kept_to(self, monkeypatch):
        events, *_ = fitted_events(monkeypatch, clear, pretrain_epochs=9)
        assert events == [(4, [5]), (4, []), (9, [5]), ("joint", [5])]

    def test_a_quick_fit_tries_one_scaling(self, monkeypatch):
        events, chosen, _ = fitted_events(monkeypatch, unclear, effort="quick", seeds=(5, 6))
        assert events == [(4, [5, 6]), (4, []), (9, [5, 6]), ("joint", [5, 6])]
        assert (chosen.clear, bool(chosen.scalers)) == (False, True)

    def test_a_thorough_fit_tries_all_at_once(self, monkeypatch):
        events, *_ = fitted_events(monkeypatch, clear, effort="thorough", seeds=(5, 6))
        every = [seed_of(seed, place) for place in range(3) for seed in (5, 6)]
        assert events == [(4, every), (4, []), (9, [5, 6]), ("joint", [5, 6])]

    def test_a_scaling_that_was_named_is_trained_to_the_end_at_once_with_the_seeds_themselves(self, monkeypatch):
        events, chosen, _ = fitted_events(monkeypatch, unclear, scaling="minmax", seeds=(5, 6))
        assert events == [(9, [5, 6]), (9, []), (9, [5, 6]), ("joint", [5, 6])]
        assert chosen.asked

    def test_a_training_that_breaks_after_the_trial_has_no_joint_stage(self, monkeypatch):
        events, chosen, _ = fitted_events(monkeypatch, unclear, effort="quick", seeds=(5, 6), breaks={(9, 5)})
        assert events[2:] == [(9, [5, 6]), ("joint", [6])]
        assert [start.tolist() for start in chosen.starts] == [unclear(6).tolist()]

    def test_a_scaling_whose_trainings_break_is_named_and_left_out(self, monkeypatch):
        events, chosen, _ = fitted_events(monkeypatch, clear, breaks={(4, 5)})
        assert [seeds for _, seeds in events[:2]] == [[5], [seed_of(5, 1), seed_of(5, 2)]]
        assert (chosen.failed, set(chosen.evidence)) == (["mixed"], {"standard", "minmax"})

    def test_one_training_that_is_not_clear_is_enough_to_try_more(self, monkeypatch):
        events, *_ = fitted_events(monkeypatch, lambda seed: clear(0) if seed == 5 else unclear(seed), seeds=(5, 6))
        assert [len(seeds) for _, seeds in events[:2]] == [2, 4]


@pytest.mark.parametrize(("agreed", "settled"), [(0.8, True), (0.79, False), (None, False)])
def test_trainings_that_agree_from_a_bound_on_are_settled(monkeypatch, agreed, settled):
    monkeypatch.setattr(scaling_search, "agreement", lambda own, others: agreed)
    nothing = Search(None, Config(), [], CPU, [], asked=False, found=[np.zeros(3)])
    assert nothing.settled == settled
    nothing.clear = True
    assert nothing.settled


@pytest.fixture
def watched_fit(monkeypatch):
    """A function that fits, and returns the estimator, the trainings as they ended, and what k-means found."""
    ended, references, joint = [], [], fit_module.train_jointly
    find = scaling_search.candidate_partitions

    def end(runs, **ways):
        joint(runs, **ways)
        ended.extend((run, embed_stored(run), run.network.centers.detach().clone()) for run in runs)

    monkeypatch.setattr(fit_module, "train_jointly", end)

    def found(*args):
        references.append(find(*args)["k-means"])
        return {"k-means": references[-1]}

    monkeypatch.setattr(scaling_search, "candidate_partitions", found)
    for name in ("tree_clusters", "unequal_clusters"):
        monkeypatch.setattr(scaling_search, name, lambda *_: None)
    monkeypatch.setattr(fit_module, "simple_partitions", lambda *_: [])  # test_consensus.py has those
    monkeypatch.setattr(rules, "CLEAR", np.inf)
    rng = np.random.default_rng(5)
    views = [9.0 * rng.normal(size=(45, w)) + 3.0 * np.arange(45)[:, None] % 4 for w in (4, 6)]
    views[1][::5] = np.nan

    def fit(**params):
        small = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 16, "n_heads": 2}
        return URRL(3, **flat(**small, **params), random_state=2).fit(views), ended, references

    return fit


def apart_of(points, members):
    """The share of a cluster's neighbours, up to ten, that are in it, beyond chance."""
    shares, chance = [], members.mean()
    for i in np.flatnonzero(members):
        far = np.linalg.norm(points - points[i], axis=1)
        far[i] = np.inf
        shares.append(members[np.argsort(far)[: min(10, max(members.sum() - 1, 1))]].mean())
    return max((np.mean(shares) - chance) / (1 - chance), 0) if shares else 0.0


def check_verdict(model, run, others):
    """What is found again by the other trainings, and the weight of the training that was kept."""
    hits = np.mean([matched(model.labels_, other) for other in others], axis=0)
    wanted = [(hits[model.labels_ == c].mean() if (model.labels_ == c).any() else 0) for c in range(3)]
    chance = [(model.labels_ == c).mean() for c in range(3)]
    expected = [(one - own) / (1 - own) for one, own in zip(wanted, chance, strict=True)]
    apart = [apart_of(model.embedding_.astype(float), model.labels_ == c) for c in range(3)]
    assert model._model.calibration.again == pytest.approx(np.multiply(expected, apart))
    assert model.decisions_["joint_stage"]["evidence"]["clustering_weight"] == run.numbers["clustering_weight"]


def scores_of(runs, found):
    ids = runs[0].stored.neighbor_ids
    return [literal.macro(own.tolist(), ids, 3) for own in found]


def test_of_several_trainings_the_best_is_kept_and_compared_with_the_others(watched_fit):
    model, ended, references = watched_fit(scaling="standard", n_init=3, pretrain_epochs=2, joint_epochs=1)
    runs = [run for run, *_ in ended]
    found = [reference.student_t(z.numpy(), c.numpy()).argmax(axis=1) for _, z, c in ended]
    scores = scores_of(runs, found)
    best = max(range(3), key=lambda i: scores[i])
    assert best > 0
    assert model._model.network is runs[best].network
    assert model.objectives_ == [run.history["total"][-1] for run in runs]
    assert model.history_ is runs[best].history
    assert np.array_equal(model.embedding_, ended[best][1].numpy())
    own_score, other_score = scores[best], scores_of(runs, [references[0]])[0]
    taught = model.decisions_["clusters"]
    earlier = max(scores_of(runs, [run.clusters.numpy() for run in runs]))
    wanted = {"network": own_score, "k-means": other_score, "earlier": earlier}
    assert taught["evidence"] == pytest.approx(wanted)
    others = [own for i, own in enumerate(found) if i != best]
    check_verdict(model, runs[best], [*others, *(run.clusters.numpy() for run in runs)])


def matched(labels, other):
    """Which samples two partitions put into the same cluster, clusters matched for the most of these."""
    names = max(permutations(range(3)), key=lambda names: np.mean(labels == np.array(names)[other]))
    return labels == np.array(names)[other]


def test_one_training_alone_is_compared_with_its_start(watched_fit):
    model, [(run, _, _)], _ = watched_fit(scaling="minmax", pretrain_epochs=2, joint_epochs=0)
    check_verdict(model, run, [run.clusters.numpy()])
    assert model.decisions_["pretraining"]["chosen"] == 2
    scaling = model.decisions_["scaling"]
    assert (scaling["asked"], scaling["clear"], scaling["quick"]) == (True, False, False)


def search_of(scaling="auto", seeds=(5,), n=60, **settings):
    source = Source.of(Views(make_blobs(n, 3)[0]), "neighbors", "auto")
    return Search.of(source, Config(n_clusters=3, **TINY, **settings), scaling, seeds, CPU)


@pytest.mark.usefixtures("three_scalings")
@pytest.mark.parametrize(
    ("clear", "params", "facts", "agreed"),
    [
        (-1.0, {}, (True, False, False), False),
        (9.0, {"effort": "quick"}, (False, True, False), True),
        (-1.0, {"scaling": "minmax"}, (False, False, True), False),
    ],
)
def test_why_other_scalings_were_spared(watched_fit, monkeypatch, clear, params, facts, agreed):
    monkeypatch.setattr(rules, "CLEAR", clear)
    model, *_ = watched_fit(n_init=2, pretrain_epochs=1, joint_epochs=0, **params)
    scaling = model.decisions_["scaling"]
    assert (scaling["clear"], scaling["quick"], scaling["asked"]) == facts
    assert list(model.decisions_["pretraining"]["evidence"]) == ["agreement"] * agreed


def test_one_scaling_of_several_is_compared_as_it_was_when_it_was_chosen(watched_fit, monkeypatch):
    tried, pretrain = [], fit_module.pretrain

    def seen(runs, until, **ways):
        pretrain(runs, until, **ways)
        tried.extend((run, run.clusters.numpy().copy()) for run in runs if not any(run is own for own, _ in tried))

    monkeypatch.setattr(fit_module, "pretrain", seen)
    monkeypatch.setattr(scaling_search, "clearly_better", lambda other, own, **_: False)
    model, [(kept, z, centers)], _ = watched_fit(pretrain_epochs=1, joint_epochs=2, learning_rate=0.005)
    start = next(own for run, own in tried if run is kept)
    others = [own for run, own in tried if run is not kept]
    last = reference.student_t(z.numpy(), centers.numpy()).argmax(axis=1)
    assert not np.array_equal(start, last)
    check_verdict(model, kept, [start, *others])
    agreed = model.decisions_["pretraining"]["evidence"]["agreement"]
    assert agreed == pytest.approx(np.mean([adjusted_rand_score(start, other) for other in others]))


@pytest.mark.parametrize("learned", [True, False])
def test_a_network_that_was_taught_is_compared_with_itself_before(watched_fit, monkeypatch, learned):
    asked = []

    def taught(embedding, labels, n_clusters):
        asked.append((labels, n_clusters))
        return embedding[[0, 20, 40]] if learned else None

    monkeypatch.setattr(scaling_search, "centers_of", taught)
    poor, good = Merit(0.1, 0.1, 1.0), Merit(0.9, 0.9, 1.0)
    monkeypatch.setattr(scaling_search, "merits", lambda parts, ids, k, views: [poor, good, poor][: len(parts)])
    model, [(run, z, _)], references = watched_fit(scaling="minmax", pretrain_epochs=1, joint_epochs=0)
    assert (asked[0][0].tolist(), asked[0][1]) == (references[0].tolist(), 3)
    assert model.decisions_["clusters"]["chosen"] == ("k-means" if learned else "network")
    assert model.decisions_["clusters"]["evidence"] == {"network": 0.1, "k-means": 0.9, "earlier": 0.1}
    centers = z[[0, 20, 40]].numpy() if learned else run.network.centers.detach().numpy()
    assert np.array_equal(model.cluster_centers_, centers)
    assert np.array_equal(model.labels_, reference.student_t(z.numpy(), centers).argmax(axis=1))
    check_verdict(model, run, [run.clusters.numpy()])


@pytest.mark.usefixtures("three_scalings")
def test_the_most_epochs_are_those_of_all_scalings_that_may_be_tried(monkeypatch):
    monkeypatch.setattr(scaling_search, "candidate_partitions", lambda samples, k, seed, *weights: {"k-means": GROUPS})
    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(9, 6))
    assert search_of().most_epochs(4) == 3 * 4 + 5 + 6
    assert search_of(seeds=(5, 6)).most_epochs(4) == 2 * (3 * 4 + 5 + 6)
    assert search_of(effort="quick").most_epochs(4) == 4 + 5 + 6
    assert search_of(effort="thorough").most_epochs(4) == 3 * 4 + 5 + 6
    assert search_of("standard").most_epochs(9) == 9 + 6
    search = search_of(seeds=(5, 6))
    search.device = torch.device("cuda")
    assert search.most_epochs(4) == 4 + 5 + 6


@pytest.mark.usefixtures("three_scalings")
def test_a_long_wait_is_told_in_minutes_of_all_trainings(monkeypatch):
    asked, search = [], search_of(seeds=(5, 6))
    seconds = iter([30.0, 30.1, 120.0])
    monkeypatch.setattr(scaling_search, "fit_seconds", lambda *args: asked.append(args) or next(seconds))
    monkeypatch.setattr(scaling_search, "measured_step", lambda *args: asked.append(args) or 0.125)
    words = "training takes up to about {} minutes on this CPU"
    assert [search.long_wait() for _ in range(3)] == ["", words.format(2), words.format(4)]
    widths, config = search.source.reduced.widths, search.config
    assert asked[:2] == [(widths, config, 60), (60, widths, config, 3, 0.125)]


def test_a_training_that_would_be_repeated_is_taken_over():
    search = search_of("standard")
    (run,) = (trial.run for trial in search.trials)

    def begun(seed=5, epochs=2, scale=1.0, **changes):
        settings = Config(n_clusters=1, **{**TINY, **changes})
        stored = run.stored if scale == 1.0 else stored_samples(settings=settings)
        other = init_state(stored, settings, seed)
        run_past(other, epochs, GROUPS)
        for weights in other.network.parameters():
            weights.data.fill_(0.5)
        return other

    for wrong in (begun(seed=6), begun(epochs=3), begun(epochs=1), begun(scale=2.0), begun(hidden_dim=12)):
        take_over([search], wrong, 2)
        assert run.n_epochs == 0
    right = begun()
    take_over([search], right, 2)
    assert run.history == right.history
    run.history["epoch"].append(3)
    assert right.n_epochs == 2, "another fit may begin with it, too"
    run.history["epoch"].pop()
    taken = {name: set(weights.flatten().tolist()) for name, weights in run.network.state_dict().items()}
    assert taken.pop("centers") == {0.0}
    assert set.union(*taken.values()) == {0.5}
    assert run.clusters is None  # which has centres of its own to find


def test_a_fit_that_memory_does_not_hold_is_refused_before_it_begins(monkeypatch):
    views, settings = Views(make_blobs(60, 3)[0]), Config(n_clusters=3, **TINY)
    needed = fit_bytes(60, views.widths, settings)
    for free, refused in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr(scaling_search, "free_bytes", lambda device, free=free: free)
        if refused:
            with pytest.raises(
                MemoryError, match=f"60 samples with columns .* {needed:,} bytes, but only {free:,} are"
            ):
                check_memory(views, settings, CPU)
        else:
            check_memory(views, settings, CPU)


def test_epochs_of_the_joint_stage_are_counted_from_its_own_first_one():
    run = init_state(stored_samples(), Config(n_clusters=3, **TINY), 5)
    run_past(run, 4, GROUPS)
    run.history["stage"][2:] = ["refining", "refining", "joint", "joint", "joint"]  # a stage of another kind between
    run.joint_stage.kept, run.numbers["clustering_weight"] = 6, 0.1
    found = stages.joint_stage_decision(run)
    assert (found.chosen, found.lasted) == (2, 3)
