"""What a fit does and when: lists of events by hand, and what it says of its trainings written out."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import reference
import reference_selection as literal
from conftest import make_blobs
from training_tools import index_samples
from viewfuse import URRL, Diverged, Views
from viewfuse.data import mixed_scaling
from viewfuse.engine.loop import embed_stored
from viewfuse.engine.progress import SILENT
from viewfuse.fitted import prepared as prepared_module
from viewfuse.fitted.prepared import Source
from viewfuse.methods import choosing_k
from viewfuse.methods.urrl import fit as fit_module
from viewfuse.methods.urrl import search as search_module
from viewfuse.methods.urrl import training
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.cost import fit_bytes, step_seconds
from viewfuse.methods.urrl.search import Search, check_memory, take_over
from viewfuse.methods.urrl.training import init_state
from viewfuse.selection import rules
from viewfuse.selection.cluster_evidence import Look, measured
from viewfuse.selection.cluster_number import curve_of
from viewfuse.selection.structureless import structureless, with_half_the_views

TINY = {"embedding_dim": 8, "hidden_dim": 8, "n_heads": 2, "batch_size": 16}
CPU = torch.device("cpu")
GROUPS = make_blobs(60, 3)[1]


def seed_of(seed, place):
    """The seed under the scaling at a place."""
    return int(np.random.SeedSequence([seed, 2**33, place]).generate_state(1)[0]) if place else seed


@pytest.fixture
def three_scalings(monkeypatch):
    """All views are scaled as a whole by "mixed", so that no two scalings do the same."""
    monkeypatch.setattr(mixed_scaling, "_CLEARLY", -np.inf)


def run_past(run, until, labels):
    """As if a training had lasted so long, and found these clusters."""
    for epoch in range(run.n_epochs, until):
        row = [epoch + 1, "pre-training", 1.0, 1.0, 0.0, 1.0 / (run.seed % 7 + 1), 0.0]
        for name, value in zip(run.history, row, strict=True):
            run.history[name].append(value)
    run.clusters = torch.from_numpy(labels)


def fitted_events(monkeypatch, find, *, seeds=(5,), scaling="auto", **settings):
    """What a fit trains, by the seeds of the trainings and the epoch until which they are trained."""
    events = []

    def pretrain(runs, until, **_):
        events.append((until, [run.seed for run in runs]))
        for run in runs:
            run_past(run, until, find(run.seed))

    monkeypatch.setattr(fit_module, "pretrain", pretrain)
    monkeypatch.setattr(fit_module, "train_jointly", lambda runs, **_: events.append(("joint", [r.seed for r in runs])))
    monkeypatch.setattr(fit_module._Chosen, "best", lambda self: self)
    monkeypatch.setattr(Config, "trial_epochs", lambda self, n: 4)
    monkeypatch.setattr(Config, "epochs", lambda self, n: (9, 6))
    kmeans = torch.from_numpy(GROUPS)
    monkeypatch.setattr(prepared_module, "filled_kmeans", lambda samples, k, seed: kmeans)
    views = Views(make_blobs(60, 3)[0])
    (chosen,) = fit_module.fit_models([views], Config(n_clusters=3, **TINY, **settings), scaling, [list(seeds)], CPU)
    return events, chosen


def clear(seed):
    return (GROUPS + 1) % 3


def unclear(seed):
    return np.random.default_rng(seed).integers(3, size=60)


@pytest.mark.usefixtures("three_scalings")
class TestWhatIsTrained:
    def test_clear_clusters_need_no_other_scaling_and_no_more_epochs(self, monkeypatch):
        events, chosen = fitted_events(monkeypatch, clear)
        assert events == [(4, [5]), (4, []), (9, []), ("joint", [5])]
        assert (chosen.clear, chosen.spared, chosen.asked, chosen.failed) == (True, True, False, [])
        assert list(chosen.evidence) == ["mixed"]

    def test_all_scalings_are_tried_where_nothing_is_clear_and_one_goes_on(self, monkeypatch):
        best = seed_of(5, 1)
        events, chosen = fitted_events(monkeypatch, lambda seed: clear(0) if seed == best else unclear(seed))
        others = [best, seed_of(5, 2)]
        assert events == [(4, [5]), (4, others), (9, [best]), ("joint", [best])]
        assert (chosen.clear, chosen.spared) == (False, False)
        assert set(chosen.evidence) == {"mixed", "standard", "minmax"}
        assert [start.tolist() for start in chosen.starts] == [
            own.tolist() for own in (clear(0), unclear(5), unclear(others[1]))
        ]
        agreed = np.mean([adjusted_rand_score(clear(0), other) for other in chosen.starts[1:]])
        assert chosen.agreed == pytest.approx(agreed)

    def test_trainings_that_agree_need_no_more_epochs_although_k_means_disagrees(self, monkeypatch):
        events, chosen = fitted_events(monkeypatch, lambda seed: unclear(0))
        assert events[2:] == [(9, []), ("joint", [5])]
        assert chosen.agreed == 1.0

    def test_a_number_of_epochs_that_was_given_is_kept_to(self, monkeypatch):
        events, _ = fitted_events(monkeypatch, clear, pretrain_epochs=9)
        assert events == [(4, [5]), (4, []), (9, [5]), ("joint", [5])]

    def test_a_quick_fit_tries_one_scaling(self, monkeypatch):
        events, chosen = fitted_events(monkeypatch, unclear, effort="quick", seeds=(5, 6))
        assert events == [(4, [5, 6]), (4, []), (9, [5, 6]), ("joint", [5, 6])]
        assert (chosen.clear, chosen.spared) == (False, True)

    def test_a_thorough_fit_tries_all_at_once(self, monkeypatch):
        events, _ = fitted_events(monkeypatch, clear, effort="thorough", seeds=(5, 6))
        every = [seed_of(seed, place) for place in range(3) for seed in (5, 6)]
        assert events == [(4, every), (4, []), (9, [5, 6]), ("joint", [5, 6])]

    def test_a_scaling_that_was_named_is_trained_to_the_end_at_once_with_the_seeds_themselves(self, monkeypatch):
        events, chosen = fitted_events(monkeypatch, unclear, scaling="minmax", seeds=(5, 6))
        assert events == [(9, [5, 6]), (9, []), (9, [5, 6]), ("joint", [5, 6])]
        assert chosen.asked

    def test_one_training_that_is_not_clear_is_enough_to_try_more(self, monkeypatch):
        events, _ = fitted_events(monkeypatch, lambda seed: clear(0) if seed == 5 else unclear(seed), seeds=(5, 6))
        assert [len(seeds) for _, seeds in events[:2]] == [2, 4]


def matched_share(labels, other, k):
    return max(np.mean(labels == np.array(names)[other]) for names in permutations(range(k)))


def level_of(shared, k):
    above = ((shared - 1 / k) / (1 - 1 / k) - 0.2) / 0.8
    return 1 / k + (1 - 1 / k) * min(max(above, 0.01), 0.995)


@pytest.fixture
def watched_fit(monkeypatch):
    """A function that fits, and returns the estimator, the trainings as they ended, and what k-means found."""
    ended, references, joint = [], [], fit_module.train_jointly
    find = prepared_module.filled_kmeans

    def end(runs, **ways):
        joint(runs, **ways)
        ended.extend((run, embed_stored(run), run.network.centers.detach().clone()) for run in runs)

    monkeypatch.setattr(fit_module, "train_jointly", end)
    monkeypatch.setattr(prepared_module, "filled_kmeans", lambda *a: references.append(find(*a)) or references[-1])
    monkeypatch.setattr(rules, "CLEAR", np.inf)
    rng = np.random.default_rng(3)
    views = [9.0 * rng.normal(size=(45, w)) + 3.0 * np.arange(45)[:, None] % 4 for w in (4, 6)]
    views[1][::5] = np.nan

    def fit(**params):
        small = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 16, "ablation": {"n_heads": 2}}
        return URRL(3, random_state=2, **small, **params).fit(views), ended, references

    return fit


def check_verdict(model, run, own, others, labels, reference_labels):
    """Confidence, probabilities, reliability and stability of the training that was kept."""
    shared = matched_share(labels, reference_labels, 3)
    decision = model.decisions_["confidence"]
    assert decision["evidence"]["shared_with_kmeans"] == pytest.approx(shared)
    assert decision["chosen"] == pytest.approx(level_of(shared, 3))
    q = reference.student_t(model.embedding_.astype(float), model.cluster_centers_.astype(float))
    raised = q ** literal.sharpness(q, level_of(shared, 3))
    np.testing.assert_allclose(model.soft_labels_, raised / raised.sum(axis=1, keepdims=True), atol=2e-3)
    verdict = model.decisions_["reliability"]
    compared = others or [reference_labels]
    assert verdict["evidence"]["agreement"] == pytest.approx(np.mean([adjusted_rand_score(own, o) for o in compared]))
    assert verdict["trainings"] == len(others) + 1
    assert model.decisions_["joint_stage"]["evidence"]["clustering_weight"] == run.numbers["clustering_weight"]


def scores_of(runs, found):
    ids = runs[0].stored.neighbor_ids
    return [literal.agreement(own.tolist(), ids) * literal.entropy(own.tolist(), 3) for own in found]


def test_of_several_trainings_the_best_is_kept_and_compared_with_the_others(watched_fit):
    model, ended, references = watched_fit(scaling="standard", n_init=3, pretrain_epochs=2, joint_epochs=1)
    runs = [run for run, *_ in ended]
    found = [reference.student_t(z.numpy(), c.numpy()).argmax(axis=1) for _, z, c in ended]
    scores = scores_of(runs, found)
    best = max(range(3), key=lambda i: scores[i])
    assert model._model.network is runs[best].network
    assert model.objectives_ == [run.history["total"][-1] for run in runs]
    assert model.history_ is runs[best].history
    assert np.array_equal(model.embedding_, ended[best][1].numpy())
    own_score, other_score = scores[best], scores_of(runs, [references[0].numpy()])[0]
    taught = model.decisions_["clusters"]
    assert taught["evidence"] == pytest.approx({"network": own_score, "k-means": other_score})
    others = [own for i, own in enumerate(found) if i != best]
    check_verdict(model, runs[best], found[best], others, found[best], references[0].numpy())
    agreeing = [[matched(model.labels_, other)[i] for other in others] for i in range(45)]
    assert model.stability_ == pytest.approx(np.mean(agreeing, axis=1))
    assert model.decisions_["reliability"]["final"]
    assert not model.decisions_["reliability"]["alone"]


def matched(labels, other):
    """Which samples two partitions put into the same cluster, clusters matched for the most of these."""
    names = max(permutations(range(3)), key=lambda names: np.mean(labels == np.array(names)[other]))
    return labels == np.array(names)[other]


def test_one_training_alone_is_compared_with_k_means(watched_fit):
    model, [(run, _, _)], references = watched_fit(scaling="minmax", pretrain_epochs=2, joint_epochs=0)
    labels = run.clusters.numpy()
    check_verdict(model, run, labels, [], labels, references[0].numpy())
    other = labels if model.decisions_["clusters"]["chosen"] == "k-means" else references[0].numpy()
    assert model.stability_.tolist() == matched(model.labels_, other).tolist()
    assert model.decisions_["reliability"]["alone"]
    assert model.decisions_["pretraining"]["chosen"] == 2
    scaling = model.decisions_["scaling"]
    assert (scaling["asked"], scaling["clear"], scaling["quick"]) == (True, False, False)


def stored_samples(n=60, settings=None):
    views, _, mask = make_blobs(n, 3)
    values = [torch.from_numpy(np.where(mask[:, v, None], view, 0)) for v, view in enumerate(views)]
    return index_samples(values, torch.from_numpy(mask), settings or Config(n_clusters=3, **TINY))


class Recorder:
    """Stands for networks side by side, and for the checkpoint and its stage."""

    def __init__(self, epoch=None):
        self.events, self.epoch = [], epoch

    def stage(self, name, runs, replicates, watches=()):
        self.events.append(("stage", name, len(watches)))
        return self

    def left(self, epochs):
        return epochs if self.epoch is None else range(self.epoch, epochs.stop)

    def keep(self, epoch, *, last=False):
        self.events.append(("keep", epoch, last))

    def unstack(self):
        self.events.append("unstack")

    def finish(self):
        self.events.append("finish")

    def embed(self):
        self.events.append("embed")
        return [torch.full((60, 8), float(r)) for r in range(2)]


class Watch:
    """Stands for early stopping."""

    def __init__(self, recorder, number, stage, stops_after):
        self.events, self.number, self.joint_stage, self.stops_after = recorder.events, number, stage, stops_after

    def judge(self, epoch, labels):
        self.events.append(("judge", self.number, epoch))

    def evaluate(self, epoch, embedding, diverged):
        assert (embedding == self.number).all()
        self.events.append(("evaluate", self.number, epoch, diverged))
        self.joint_stage.settled = epoch >= self.stops_after

    def restore_best(self):
        self.events.append(("restore", self.number))


def joint_events(monkeypatch, length, *, stops_after=99, watched=True, epoch=None):
    settings = Config(n_clusters=3, joint_epochs="auto" if watched else length, **TINY)
    stored, recorder = stored_samples(), Recorder(epoch)
    runs = [init_state(stored, settings, seed) for seed in (0, 1)]
    for run in runs:
        run_past(run, 3, GROUPS)
    watches = [Watch(recorder, r, run.joint_stage, stops_after) for r, run in enumerate(runs)] if watched else []
    monkeypatch.setattr(training, "Replicates", lambda runs, joint: recorder.events.append(("joint", joint)) or recorder)
    monkeypatch.setattr(training, "EarlyStopping", lambda *args, settles: watches.pop(0) if settles else None)
    monkeypatch.setattr(
        training, "run_epoch", lambda runs, reps, epoch, stage, progress: recorder.events.append((stage, epoch))
    )
    runs[1].diverged = "broke" if watched else ""
    training._train_jointly_together(runs, range(3, 3 + length), SILENT, recorder)
    return recorder.events, runs


@pytest.mark.parametrize(
    ("length", "looks"),
    [
        (16, [2, 4, 6, 8, 10, 12, 14, 16]),
        (10, [1, 2, 4, 5, 6, 8, 9, 10]),
        (30, [4, 8, 11, 15, 19, 22, 26, 30]),
        (3, [1, 2, 3]),
        (1, [1]),
    ],
)
def test_a_joint_stage_is_looked_at_eight_times(monkeypatch, length, looks):
    events, _ = joint_events(monkeypatch, length)
    assert [event[2] - 3 for event in events if event[0] == "evaluate" and event[1] == 0] == looks


def test_the_events_of_a_watched_stage(monkeypatch):
    events, _ = joint_events(monkeypatch, 16, stops_after=7)
    assert events == [
        ("joint", True), ("stage", "joint", 2), ("judge", 0, 3), ("judge", 1, 3),
        ("joint", 3), ("keep", 4, False),
        ("joint", 4), "unstack", "embed", ("evaluate", 0, 5, ""), ("evaluate", 1, 5, "broke"), ("keep", 5, False),
        ("joint", 5), ("keep", 6, False),
        ("joint", 6), "unstack", "embed", ("evaluate", 0, 7, ""), ("evaluate", 1, 7, "broke"), ("keep", 7, True),
        "finish", ("restore", 0), ("restore", 1),
    ]  # fmt: skip


def test_a_stage_that_is_taken_up_again_does_not_judge_its_start(monkeypatch):
    events, _ = joint_events(monkeypatch, 2, epoch=4)
    assert events[2:5] == [("joint", 4), "unstack", "embed"]
    assert events[-4:] == [("keep", 5, True), "finish", ("restore", 0), ("restore", 1)]


def test_a_stage_whose_length_was_given_is_not_looked_at(monkeypatch):
    events, runs = joint_events(monkeypatch, 2, watched=False)
    steps = [("joint", 3), ("keep", 4, False), ("joint", 4), ("keep", 5, True)]
    assert events == [("joint", True), ("stage", "joint", 0), *steps, "finish"]
    assert [run.joint_stage.kept for run in runs] == [5, 5]


def test_pretraining_ends_with_centres_a_weight_and_clusters(monkeypatch):
    recorder, settings = Recorder(), Config(n_clusters=3, **TINY)
    run = init_state(stored_samples(), settings, 4)
    embedding = torch.from_numpy(np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32))
    recorder.embed = lambda: [embedding]
    starts, own = [], training.initial_centers
    monkeypatch.setattr(training, "Replicates", lambda runs, joint: recorder.events.append(("joint", joint)) or recorder)
    monkeypatch.setattr(training, "run_epoch", lambda runs, r, epoch, s, p: run_past(run, epoch + 1, GROUPS))
    monkeypatch.setattr(training, "initial_centers", lambda *args: starts.append(args) or own(*args))
    training._pretrain_together([run], range(3), SILENT, recorder)
    assert recorder.events == [
        ("joint", False), ("stage", "pretraining-3", 0),
        ("keep", 1, False), ("keep", 2, False), ("keep", 3, True), "finish",
    ]  # fmt: skip
    assert starts[0][0] is embedding
    assert starts[0][1:3] == (3, 4)
    centers = run.network.centers.detach().numpy()
    assert run.clusters.tolist() == reference.student_t(embedding.numpy(), centers).argmax(axis=1).tolist()
    assert (run.numbers["clustering_weight"], run.joint_stage.kept) == (pytest.approx(0.7), 3)


def test_jobs_are_the_trainings_that_are_not_there_yet(monkeypatch):
    settings = Config(n_clusters=3, **TINY)
    stored, jobs = stored_samples(), []
    runs = [init_state(stored, settings, seed) for seed in range(4)]
    for run, epochs in zip(runs, (0, 2, 5, 6), strict=True):
        run_past(run, epochs, GROUPS)
    runs[3].clusters = None  # it was long enough, but has no centres
    monkeypatch.setattr(training, "run_jobs", lambda given, **_: jobs.extend(given) or [[] for _ in given])
    monkeypatch.setattr(training, "_learn", lambda groups, jobs, *_: training.run_jobs(jobs))
    training.pretrain(runs, 5, threads=2)
    widths = [view.shape[1] for view in stored.values]
    assert [(job.args[1][0].seed, job.args[2]) for job in jobs] == [(0, range(5)), (1, range(2, 5)), (3, range(6, 5))]
    step = step_seconds(widths, settings)
    assert [job.seconds for job in jobs] == pytest.approx([5 * 3 * step, 3 * 3 * step, 0.0])  # 60 // 16 steps
    assert {(job.threads, job.gpus, job.n_bytes) for job in jobs} == {(2, 0, fit_bytes(60, widths, settings))}
    jobs.clear()
    monkeypatch.setattr(Config, "epochs", lambda self, n: (5, 4))
    training.train_jointly(runs[1:3])
    assert [job.args[2] for job in jobs] == [range(2, 6), range(5, 9)]


def search_of(scaling="auto", seeds=(5,), n=60, **settings):
    source = Source.of(Views(make_blobs(n, 3)[0]), "neighbors", "auto")
    return Search.of(source, Config(n_clusters=3, **TINY, **settings), scaling, seeds, CPU)


@pytest.mark.usefixtures("three_scalings")
def test_the_most_epochs_are_those_of_all_scalings_that_may_be_tried(monkeypatch):
    monkeypatch.setattr(Config, "epochs", lambda self, n: (9, 6))
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
    monkeypatch.setattr(search_module, "fit_seconds", lambda *args: asked.append(args) or next(seconds))
    words = "training takes up to about {} minutes on 2 CPU cores"
    assert [search.long_wait() for _ in range(3)] == ["", words.format(2), words.format(4)]
    assert asked[0] == (60, search.source.reduced.widths, search.config, 3)


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

    for wrong in (begun(seed=6), begun(epochs=3), begun(scale=2.0), begun(hidden_dim=12)):
        take_over([search], wrong, 2)
        assert run.n_epochs == 0
    right = begun()
    take_over([search], right, 2)
    assert run.history is right.history
    taken = {name: set(weights.flatten().tolist()) for name, weights in run.network.state_dict().items()}
    assert taken.pop("centers") == {0.0}
    assert set.union(*taken.values()) == {0.5}
    assert run.clusters is None  # which has centres of its own to find


def test_a_fit_that_memory_does_not_hold_is_refused_before_it_begins(monkeypatch):
    views, settings = Views(make_blobs(60, 3)[0]), Config(n_clusters=3, **TINY)
    needed = fit_bytes(60, views.widths, settings)
    for free, refused in ((needed, False), (needed - 1, True)):
        monkeypatch.setattr(search_module, "free_bytes", lambda device, free=free: free)
        if refused:
            with pytest.raises(MemoryError, match=f"60 samples with columns .* {needed:,} bytes, but only {free:,} are"):
                check_memory(views, settings, CPU)
        else:
            check_memory(views, settings, CPU)


@pytest.mark.parametrize(("within", "alone"), [((1, 4), True), ((2, 4), True), ((3, 4), False)])
def test_the_number_of_clusters_is_chosen_on_some_samples_at_random(monkeypatch, within, alone):
    monkeypatch.setattr(choosing_k, "_ROWS", 40)
    seen = {}
    monkeypatch.setattr(choosing_k, "evidence_curve", lambda run, ks: seen.update(run=run, ks=ks) or ["curve"])
    monkeypatch.setattr(choosing_k, "number_decision", lambda curve, *, alone: {"curve": curve, "alone": alone})
    monkeypatch.setattr(choosing_k, "pretrained", lambda source, config, *rest, **_: seen.update(rest=rest) or
                        SimpleNamespace(source=source, config=config))  # fmt: skip
    views = Views(make_blobs(60, 3)[0])
    settings = Config(n_clusters=7, **TINY)
    found = choosing_k.choose_n_clusters(views, settings, within, "standard", 9, CPU)
    rows = np.sort(np.random.default_rng([9, 3]).choice(60, 40, replace=False))
    assert found.run.source.reduced.ids.tolist() == views.ids[rows].tolist()
    assert found.run.config.n_clusters == 1
    assert seen["rest"] == ("standard", 9, CPU)
    assert seen["ks"] == [*range(max(within[0], 2), 5)]
    assert found.decision == {"curve": ["curve"], "alone": alone}


def test_two_and_a_half_thousand_samples_are_enough_to_choose():
    assert [len(choosing_k._drawn(Views({"a": np.ones((n, 1))}), 0)) for n in (2_500, 2_501)] == [2_500] * 2
    assert choosing_k.RANGE == (2, 30)


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


def test_the_evidence_is_that_of_the_samples_less_that_of_a_gaussian(monkeypatch):
    settings = Config(n_clusters=1, **TINY)
    run = init_state(stored_samples(30, settings), settings, 11)
    draws, said = torch.Generator().manual_seed(11), []
    monkeypatch.setattr(choosing_k, "embed", lambda method, network, own, stored: torch.cat(
        [*own.values, stored.values[0]], dim=1))  # fmt: skip
    gaussian = structureless(run.stored, draws)
    for own in (run.stored, gaussian):
        hidden = with_half_the_views(own, draws)
        looks = [torch.cat([*one.values, own.values[0]], dim=1) for one in (own, hidden)]
        said.append(measured(Look(own, *looks), [2, 3], draws))
    assert choosing_k.evidence_curve(run, [2, 3]) == curve_of([2, 3], *said)
