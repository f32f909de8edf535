"""Two stages, their losses, their random numbers, and how they stop."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from sklearn.cluster import AgglomerativeClustering, KMeans

import reference
from conftest import make_blobs
from training_tools import index_samples, train, train_replicates
from viewfuse import Diverged, Views
from viewfuse.data.scaling import fit_scaler
from viewfuse.engine import training as engine
from viewfuse.engine.replicates import embed, epoch_keys
from viewfuse.engine.training import Training, TrainState
from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import (
    TERMS,
    URRLMethod,
    draws_per_sample,
    soft_assignment,
    total,
    two_branches,
)
from viewfuse.methods.urrl.network import build_network
from viewfuse.methods.urrl.stages import init_state
from viewfuse.nn.layers import tensor_cores
from viewfuse.selection import kmeans as centers_module
from viewfuse.selection.kmeans import drawn_centers, in_order, initial_centers, ward_centers

SMALL = {"embedding_dim": 16, "hidden_dim": 16, "n_heads": 2, "pretrain_epochs": 2, "joint_epochs": 2, "batch_size": 16}


def stored_blobs(settings, n=60, missing=0.3):
    views = Views(make_blobs(n, 3, missing=missing)[0])
    scaled = fit_scaler(views, "minmax").apply(views)
    return index_samples([torch.from_numpy(a) for a in scaled.arrays], torch.tensor(scaled.mask), settings)


def run_for(settings, **data):
    stored = stored_blobs(settings, **data)
    widths = [view.shape[1] for view in stored.values]
    network = build_network(widths, settings, torch.Generator().manual_seed(0))
    return TrainState(network, stored, 0, URRLMethod(settings), {"view_dropout": 0.2, "clustering_weight": 0.1})


def draws_for(run, n_rows, seed=0):
    count = sum(draws_per_sample(run.stored, run.method.config))
    return torch.rand(1, n_rows, count, generator=torch.Generator().manual_seed(seed))


def losses_of(run, rows, rate=0.2, *, seed=0, joint=False):
    draws = draws_for(run, len(rows), seed)
    batch = run.method.prepare(run.stored, rows[None], rate, draws)
    return torch.cat(list(run.method.losses(run.network, batch, joint=joint).values())).detach()


def orders(n, size, epochs, seed=0):
    """Row numbers of every step, of shape (epochs, steps, rows)."""
    settings = Config(**{**SMALL, "batch_size": size})
    run = run_for(settings, n=n, missing=0.0)
    run.seed = seed
    together = Training([run])
    steps = together.begin(stages.pretraining_stage(together, 1))
    steps._step = lambda: None
    return torch.stack([steps.run(e) is not None and steps._order[:, 0].clone() for e in epochs])


@pytest.mark.parametrize(("n", "size"), [(1, 1), (1, 5), (7, 7), (7, 3), (40, 8), (40, 50), (31, 16)])
def test_batches_are_full_and_hold_no_row_twice(n, size):
    rows = orders(n, size, [0])[0]
    assert rows.shape == (max(1, n // size), min(n, size))
    assert len(set(rows.flatten().tolist())) == rows.numel()
    assert set(rows.flatten().tolist()) <= set(range(n))


def test_losses_of_a_batch_are_those_of_the_two_branches():
    settings = Config(**SMALL, noise=0.3, feature_dropout=0.2, n_clusters=3)
    run = run_for(settings)
    run.network.centers.data.normal_()
    rows = torch.arange(7)
    terms = losses_of(run, rows, 0.5, seed=3, joint=True)
    with torch.no_grad():
        samples, batch = two_branches(run.stored, rows[None], settings, 0.5, draws_for(run, 7, 3))
        z = run.network.encode(batch)
        rebuilt = [x.double().numpy() for x in run.network.decode(z[7:])]
    plain, augmented = z[:7].double().numpy(), z[7:].double().numpy()
    expected = [
        reference.loss_rec(rebuilt, [x[:7].numpy() for x in samples.values], samples.present[:7].numpy()),
        reference.loss_aug(plain, augmented),
        reference.loss_clu(augmented, run.network.centers.detach().double().numpy()),
    ]
    assert terms.tolist() == pytest.approx(expected, rel=1e-4)
    assert reference.loss_aug(augmented, plain) != pytest.approx(expected[1], rel=1e-3)
    assert float(total(dict(zip(TERMS, terms, strict=True)), 0.5, 0.1)) == pytest.approx(
        float(terms[0] + 0.5 * terms[1] + 0.1 * terms[2])
    )


def test_every_epoch_has_an_order_of_its_own():
    first, second = (rows.flatten().tolist() for rows in orders(32, 8, [0, 1]))
    assert first != second
    assert first != sorted(first)
    assert sorted(first) == list(range(32))


def test_dropped_views_are_reconstructed_and_missing_ones_are_not():
    settings = Config(**SMALL)
    run = run_for(settings)
    rows = torch.arange(10)
    before = losses_of(run, rows, 0.9)[0]
    for v, view in enumerate(run.stored.values):  # junk in hidden places
        view[~run.stored.present[:, v]] = 1e3
    assert float(before) == float(losses_of(run, rows, 0.9)[0])
    with torch.no_grad():  # a decoder that rebuilds nothing but zeros pays for every view that is there, dropped or not
        for decoder in run.network.decoders:
            decoder[-1].weight.zero_()
            decoder[-1].bias.zero_()
    samples = run.stored.take(rows)
    means = torch.stack([view.square().mean(dim=1) for view in samples.values], dim=1)
    loss = losses_of(run, rows, 0.9)[0]
    assert float(loss) == pytest.approx(float((means * samples.present).sum(dim=1).mean()), rel=1e-5)


def test_without_augmentation_there_is_no_robustness_loss_and_one_branch():
    run = run_for(Config(**SMALL, augmentation=False))
    terms = losses_of(run, torch.arange(9))
    assert float(terms[1]) == 0
    assert torch.equal(terms, losses_of(run, torch.arange(9), seed=5))


@pytest.mark.slow
def test_history_has_a_row_per_epoch_and_the_loss_falls():
    settings = Config(**{**SMALL, "pretrain_epochs": 12, "joint_epochs": 3}, n_clusters=3, learning_rate=3e-3)
    history = train(stored_blobs(settings), settings, 0).history
    assert history["epoch"] == list(range(1, 16))
    assert history["stage"] == ["pre-training"] * 12 + ["joint"] * 3
    assert history["reconstruction"][11] < 0.5 * history["reconstruction"][0]
    assert set(history["clustering"][:12]) == {0.0}
    assert all(value > 0 for value in history["clustering"][12:])


def test_joint_stage_moves_the_centres_and_pretraining_does_not():
    settings = Config(**SMALL, n_clusters=3)
    stored = stored_blobs(settings)
    first = Config(**{**SMALL, "joint_epochs": 0}, n_clusters=3)
    kmeans = train(stored, first, 0)
    labels = soft_assignment(embed(kmeans.method, kmeans.network, stored, stored), kmeans.network.centers).argmax(dim=1)
    points = embed(kmeans.method, kmeans.network, stored, stored)
    for c in range(3):  # without a joint stage the centres are those of k-means
        assert torch.allclose(kmeans.network.centers[c], points[labels == c].mean(dim=0), atol=1e-4)
    joint = train(stored, settings, 0)
    start = initial_centers(points, 3, 0)
    assert not np.allclose(joint.network.centers.detach().numpy(), start)


def test_ward_centres_are_the_means_of_its_clusters():
    points = np.array([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0], [9.0, 8.0], [9.0, 8.5]], dtype=np.float32)
    centers = ward_centers(torch.from_numpy(points), 2)
    assert centers[centers[:, 0].argsort()] == pytest.approx(np.array([[0.0, 0.5], [9.0, 8.5]]))
    assert initial_centers(torch.from_numpy(points), 1, 0).tolist() == [points.mean(axis=0).tolist()]


@pytest.mark.parametrize(("n", "width", "k"), [(60, 3, 4), (60, 3, 60), (60, 3, 1), (300, 40, 7)])
def test_ward_clusters_are_those_of_scikit_learn(n, width, k):
    points = np.random.default_rng(n + k).normal(size=(n, width)).astype(np.float32) + 1_000
    known = AgglomerativeClustering(k, linkage="ward").fit_predict(points)
    means = np.stack([points[known == c].mean(axis=0) for c in range(k)])
    centers = ward_centers(torch.from_numpy(points), k)
    assert centers[np.lexsort(centers.T)] == pytest.approx(means[np.lexsort(means.T)], abs=1e-3)


def test_ward_gives_as_many_clusters_as_asked_for_also_of_equal_points():
    assert ward_centers(torch.ones(20, 3), 4).tolist() == [[1.0] * 3] * 4


def three_groups(n=120):
    rng = np.random.default_rng(0)
    return torch.from_numpy(
        np.repeat([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], n // 3, axis=0) + rng.normal(size=(n, 2)) * 0.1
    )


def test_a_bad_start_from_ward_is_noticed(monkeypatch):
    split_and_merged = np.array([[0.0, 0.05], [0.0, -0.05], [4.5, 4.5]])
    monkeypatch.setattr(centers_module, "ward_centers", lambda points, n_clusters: split_and_merged)
    centers = initial_centers(three_groups(), 3, 0)
    assert np.sort(centers.sum(axis=1)) == pytest.approx([0.0, 9.0, 9.0], abs=0.1)


def test_drawn_starts_are_samples_far_apart():
    points = three_groups()
    starts = drawn_centers(points, torch.ones(len(points)), 3, np.random.RandomState(0), 20)
    assert starts.shape == (20, 3, 2)
    assert (starts[:, :, None] == points).all(dim=3).any(dim=2).all()
    assert all(sorted(start.sum(dim=1).round().tolist()) == pytest.approx([0, 9, 9], abs=1.1) for start in starts)
    assert len({tuple(start.flatten().tolist()) for start in starts}) > 1
    same = drawn_centers(points, torch.ones(len(points)), 3, np.random.RandomState(0), 20)
    assert torch.equal(starts, same)


def test_equal_points_have_starts_too():
    points = torch.ones(5, 2)
    assert torch.equal(drawn_centers(points, torch.ones(5), 3, np.random.RandomState(0), 7), torch.ones(7, 3, 2))


def test_a_good_start_from_ward_is_kept(monkeypatch):
    far = torch.tensor([[[0.0, 0.0], [90.0, 90.0], [99.0, 99.0]]])  # two centres that nothing is nearest to
    monkeypatch.setattr(centers_module, "drawn_centers", lambda *args: far)
    centers = initial_centers(three_groups(), 3, 0)
    assert np.sort(centers.sum(axis=1)) == pytest.approx([0.0, 9.0, 9.0], abs=0.1)


def test_the_start_does_not_depend_on_the_number_of_threads():
    points = three_groups(2400).float()
    before, found = torch.get_num_threads(), []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        with ThreadPoolExecutor(1) as pool:
            found.append(pool.submit(initial_centers, points, 5, 0).result())
    torch.set_num_threads(before)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_many_rows_start_from_micro_clusters(monkeypatch):
    monkeypatch.setattr(centers_module, "_WARD_ROWS", 50)
    monkeypatch.setattr(centers_module, "_GROUPS", 40)
    monkeypatch.setattr(centers_module, "_ROWS_AT_A_TIME", 70)
    points = three_groups(900)
    sizes = []

    def first_groups(sample, k):
        sizes.append(len(sample))
        return sample[:k].numpy()

    monkeypatch.setattr(centers_module, "ward_centers", first_groups)
    centers = initial_centers(points, 3, 0)
    assert sizes == [40]
    means = np.array([points[i : i + 300].mean(dim=0).numpy() for i in (0, 300, 600)])
    assert np.sort(centers, axis=0) == pytest.approx(np.sort(means, axis=0), abs=1e-6)


def test_k_means_ends_where_scikit_learn_ends(monkeypatch):
    monkeypatch.setattr(centers_module, "_ROWS_AT_A_TIME", 70)
    monkeypatch.setattr(centers_module, "_TOLERANCE", 0.0)
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(400, 3)), rng.integers(1, 5, size=400).astype(float)
    starts = rng.normal(size=(3, 4, 3))
    found, spread = centers_module.k_means(*map(torch.from_numpy, (points, weights, starts)), 300)
    for start, own, squares in zip(starts, found.numpy(), spread.tolist(), strict=True):
        expected = KMeans(4, init=start, n_init=1, tol=0).fit(points, sample_weight=weights)
        assert own == pytest.approx(expected.cluster_centers_, abs=1e-9)
        assert squares == pytest.approx(expected.inertia_)


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        (2, "the reconstruction .*loss is not finite in epoch 1, step 1; lower learning_rate"),
        (0, "the embedding is not finite after epoch 0; lower learning_rate"),
    ],
)
def test_a_number_that_is_not_finite_stops_the_run_and_is_named(epochs, words):
    settings = Config(**{**SMALL, "pretrain_epochs": epochs}, n_clusters=3)
    stored = stored_blobs(settings)
    stored.values[0][stored.present[:, 0]] = 1e30
    with pytest.raises(Diverged, match=words):
        train(stored, settings, 0)


def test_a_huge_learning_rate_stops_within_an_epoch():
    settings = Config(**{**SMALL, "learning_rate": 1e6}, n_clusters=3)
    with pytest.raises(Diverged, match="epoch 1"):
        train(stored_blobs(settings), settings, 0)


def test_random_numbers_of_an_epoch_depend_on_seed_and_epoch_alone():
    assert torch.equal(epoch_keys([0, 5], 4)[1], epoch_keys([5], 4)[0])
    keys = [number for seed in (0, 1) for epoch in (-1, 0, 1) for number in epoch_keys([seed], epoch)[0].tolist()]
    assert len(set(keys)) == 12


@pytest.mark.parametrize(
    "switches",
    [
        pytest.param({"knn_imputation": False}, marks=pytest.mark.slow),
        {"clustering_module": False},
        pytest.param({"n_neighbors": 80}, marks=pytest.mark.slow),
        pytest.param(
            {"augmentation": False}, marks=pytest.mark.slow
        ),  # these are written out in test_step and test_network
        pytest.param({"distance_code": False, "three_level_mask": False}, marks=pytest.mark.slow),
        pytest.param({"neighbor_output": "mean", "view_output": "concat"}, marks=pytest.mark.slow),
        pytest.param({"donor_depth": 1}, marks=pytest.mark.slow),
    ],
)
def test_every_ablation_trains(switches):
    settings = Config(**SMALL | {"pretrain_epochs": 1, "joint_epochs": 1}, **switches, n_clusters=3)
    run = train(stored_blobs(settings), settings, 0)
    assert all(np.isfinite(run.history["total"]))
    assert len(run.history["epoch"]) == (1 if switches.get("clustering_module") is False else 2)


def test_an_embedding_does_not_depend_on_its_company_to_the_bit():
    settings = Config(**SMALL, n_clusters=3)
    run = run_for(settings, n=150)
    together = embed(run.method, run.network, run.stored, run.stored)
    order = torch.randperm(150)
    shuffled = embed(run.method, run.network, run.stored.take(order), run.stored)
    alone = embed(run.method, run.network, run.stored.take(slice(149, 150)), run.stored)
    assert torch.equal(together[order], shuffled)
    assert torch.equal(together[149:], alone)


def test_clusters_are_numbered_as_the_points_meet_them():
    points = three_groups(30).numpy()
    centers = np.stack([points[i : i + 10].mean(axis=0) for i in (0, 10, 20)])
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0]):
        assert np.array_equal(in_order(centers[order], points), centers)


def test_the_precision_of_products_is_restored():
    before = torch.backends.cuda.matmul.fp32_precision
    with tensor_cores(torch.device("cuda")):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert torch.backends.cuda.matmul.fp32_precision == before


@pytest.mark.parametrize("n_clusters", [4, 6])
def test_many_rows_of_fewer_kinds_than_clusters_have_a_start(monkeypatch, n_clusters):
    monkeypatch.setattr(centers_module, "_WARD_ROWS", 30)
    kinds = torch.eye(4).repeat(10, 1)
    centers = initial_centers(kinds, n_clusters, 0)
    assert centers.shape == (n_clusters, 4)
    assert {tuple(center) for center in centers.round(5).tolist()} == {tuple(kind) for kind in torch.eye(4).tolist()}


@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_the_view_dropout_is_that_of_the_samples_unless_it_is_given(missing):
    stored = stored_blobs(Config(**SMALL), missing=missing)
    share = 1 - float(stored.present.double().mean())
    assert init_state(stored, Config(**SMALL), 0).numbers["view_dropout"] == pytest.approx(0.15 + 0.85 * share**2)
    assert init_state(stored, Config(**SMALL, view_dropout=0.4), 0).numbers["view_dropout"] == 0.4


def test_the_drawn_starts_hang_on_the_seed(monkeypatch):
    drawn, drawn_centers = [], centers_module.drawn_centers
    monkeypatch.setattr(centers_module, "drawn_centers", lambda *args: drawn.append(drawn_centers(*args)) or drawn[-1])
    for seed in (0, 1, 0):
        initial_centers(three_groups(), 3, seed)
    assert torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.slow
def test_a_cpu_records_no_steps(monkeypatch):
    made = []
    monkeypatch.setattr(engine, "GraphedStep", lambda step, device: made.append(device) or step)
    settings = Config(**SMALL | {"pretrain_epochs": 1, "joint_epochs": 1})
    train(stored_blobs(settings, n=20), settings, 0)
    train_replicates([stored_blobs(settings, n=20)] * 2, settings, [0, 1])
    assert made == []
