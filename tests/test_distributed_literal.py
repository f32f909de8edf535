"""`fit-large` beside a literal version: its order of rows, its bank, its batches and its steps, written out.

The data have units, offsets, unequal clusters and missing views, and the limits by size are low enough to be crossed.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import reference
import reference_step
from reference_step import Learner, Lists, encode, keys, loss_aug, loss_rec, order, uniform
from sharded_data import write_shards, written
from viewfuse import URRL, Config
from viewfuse.distributed import first_pass, training
from viewfuse.distributed.first_pass import BucketReader, Buckets, run_first_pass
from viewfuse.distributed.fit_large import fit_large
from viewfuse.distributed.processes import Processes
from viewfuse.distributed.shards import Shards
from viewfuse.distributed.training import PreparedRows, VisitPlan, train_on_all
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import RandomNumbers
from viewfuse.engine.training import SILENT, TrainState
from viewfuse.methods.urrl.stages import EarlyStopping
from viewfuse.neighbors.index import Samples

ALONE = Processes(0, 1, torch.device("cpu"))
N, BANK, WIDTHS, PER_BUCKET = 70, 30, (3, 2), 30
GROUP, GROUPS, STEPS, SEED, RATE, WEIGHT = 4, 3, 3, 5, 0.4, 0.8
SMALL = {
    "config": Config(n_neighbors=3, embedding_dim=8, hidden_dim=6, pretrain_epochs=1, joint_epochs=1, noise=0.3,
                     learning_rate=3e-4, feature_dropout=0.2, robustness_weight=0.5),
    "scaling": "standard", "device": "cpu", "random_state": 0,
}  # fmt: skip


def unlike_rows(n=N, sizes=(0.6, 0.3, 0.1)):
    """Three clusters of different sizes; columns with units and offsets; a third of the samples lack a view."""
    rng = np.random.default_rng(7)
    labels = np.sort(rng.choice(3, size=n, p=sizes))
    scales, offsets = [[1.0, 1000.0, 0.01], [50.0, 1.0]], [[0.0, 5e4, -3.0], [1e3, 0.0]]
    views = []
    for width, scale, offset in zip(WIDTHS, scales, offsets, strict=True):
        points = rng.normal(size=(3, width))[labels] * 8 + rng.normal(size=(n, width))
        views.append((points * scale + offset).astype(np.float32))
    mask = np.ones((n, 2), dtype=bool)
    lacking = rng.permutation(n)[: n // 3]
    mask[lacking, rng.integers(2, size=len(lacking))] = False
    return views, mask, labels, [f"row-{i}" for i in range(n)]


def as_table(views, mask, ids):
    """Lists of numbers; None where a sample lacks the view."""
    lists = [
        [row.tolist() if there else None for row, there in zip(view, mask[:, v], strict=True)]
        for v, view in enumerate(views)
    ]
    return pa.table({"id": ids, **{f"v{v}": own for v, own in enumerate(lists)}})


def mixed(number):
    """SplitMix64's hash, in Python's integers."""
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return number ^ (number >> 31)


def hashed(name):
    sums = sum(mixed((place << 8) + letter + 1) for place, letter in enumerate(name.encode()))
    return mixed((sums + len(name.encode())) % 2**64)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """The model of the bank, the prepared rows, and how many rows each bucket has."""
    views, mask, _, ids = unlike_rows()
    folder = tmp_path_factory.mktemp("literal")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(first_pass, "_ROWS_PER_BUCKET", PER_BUCKET)
        shards = Shards(write_shards(folder / "data", as_table(views, mask, ids), 3))
        buckets = Buckets.of(N, N, BANK)
        run_first_pass(shards, folder / "rows", buckets, ALONE)
        reader = BucketReader(folder / "rows", buckets, sum(WIDTHS))
        names, values = reader.bank()
        start = URRL(3, **SMALL).fit(shards.layout.views(values, names))
        rows = PreparedRows(folder / "prepared", list(WIDTHS), start._model.stored.neighbor_ids.shape[2])
        return start._model, rows, rows.prepare(reader, shards.layout, start._model, ALONE), names


def literal_rows():
    """Numbers of the rows by bucket, each in the order of the hashes, and those of the bank."""
    ids = unlike_rows()[3]
    by_hash = sorted(range(N), key=lambda i: hashed(ids[i]))
    count, last = -(-N // PER_BUCKET), 2**64 - 1
    found = [[i for i in by_hash if min(hashed(ids[i]) // (last // count + 1), count - 1) == b] for b in range(count)]
    return found, [i for i in by_hash if hashed(ids[i]) <= int(BANK / N * 2.0**64)]


def test_the_bank_and_the_buckets_are_the_rows_with_the_lowest_hashes(prepared):
    buckets, bank = literal_rows()
    ids = unlike_rows()[3]
    assert len(buckets) == 3
    assert prepared[2] == [len(rows) for rows in buckets]
    assert prepared[3] == [ids[i] for i in bank]


def test_prepared_rows_are_scaled_by_the_bank_and_find_their_neighbours_in_it(prepared):
    _, rows, counts, _ = prepared
    views, mask, _, _ = unlike_rows()
    buckets, bank = literal_rows()
    scaled = []
    for v, view in enumerate(views):
        known = view[[i for i in bank if mask[i, v]]].astype(float)
        scaled.append(np.where(mask[:, [v]], (view.astype(float) - known.mean(axis=0)) / known.std(axis=0), 0.0))
    for b, expected in enumerate(buckets):
        found = rows.read(b, np.arange(counts[b]), 1)
        assert found.present.tolist() == mask[expected].tolist()
        for v in range(2):
            np.testing.assert_allclose(found.values[v].numpy(), scaled[v][expected], rtol=1e-4, atol=1e-4)
        for place, i in enumerate(expected):
            for v in range(2):
                near = [j for j in found.neighbor_ids[place, v].tolist() if j >= 0]
                others = [j for j in bank if j != i and mask[j, v]] if mask[i, v] else []
                others.sort(key=lambda j: np.linalg.norm(scaled[v][i] - scaled[v][j]))
                assert [bank[j] for j in near] == others[: len(near)]
                assert bool(near) == bool(others)


class LargeLearner(Learner):
    """Steps on global batches, with neighbours and donors in the bank only, in plain loops."""

    def __init__(self, network, values, mask, bank, twins, config):
        super().__init__(network, values, mask, config, SEED, RATE, WEIGHT, joint=True)
        self.bank = mask.copy()
        self.bank[bank:] = False
        self.twins = twins
        self.adam.rate = 2 * config.learning_rate

    def plain(self, row):
        own, k, depth = self.mask[row], self.config.n_neighbors, self.config.donor_depth
        return *reference.knn_imputation(self.values, self.bank, own, self.twins.get(row, row), k, depth), own

    def augmented(self, row, draws):
        n_views, k = len(self.values), self.config.n_neighbors
        kept = reference_step.dropped_views(self.mask[row], self.rate, draws[:n_views], draws[n_views : 2 * n_views])
        twin = self.twins.get(row, row)
        blocks, valid = reference.knn_imputation(self.values, self.bank, kept, twin, k, self.config.donor_depth)
        parts = np.split(draws[2 * n_views :].reshape(k, -1), np.cumsum([b.shape[1] for b in blocks])[:-1], axis=1)
        pairs = enumerate(zip(blocks, parts, strict=True))
        spoiled = reference_step.spoiled
        return [spoiled(block, valid[v], part, self.config) for v, (block, part) in pairs], valid, kept

    def global_step(self, groups, draws):
        """One update; the target of the clustering loss is one of the whole batch."""
        parts = [self.terms(rows, own) for rows, own in zip(groups, draws, strict=True)]
        both = torch.stack([torch.stack(terms) for terms, _ in parts]).mean(dim=0)
        z = torch.cat([embedding for _, embedding in parts])
        clustering = reference_step.loss_clu(z, self.network.centers)
        self.adam.zero_grad()
        (both[0] + self.config.robustness_weight * both[1] + self.weight * clustering).backward()
        self.adam.step()
        return [float(both[0].detach()), float(both[1].detach()), float(clustering.detach())]

    def terms(self, rows, draws):
        z = encode(self.network, Lists.of([self.plain(row) for row in rows]), self.config)
        augmented = [self.augmented(row, own) for row, own in zip(rows, draws, strict=True)]
        z_aug = encode(self.network, Lists.of(augmented), self.config)
        rebuilt = [reference_step.fully_connected(decoder, z_aug) for decoder in self.network.decoders]
        values = [torch.from_numpy(view[rows]) for view in self.values]
        return [loss_rec(rebuilt, values, torch.from_numpy(self.mask[rows])), loss_aug(z, z_aug)], z_aug


def literal_visits(counts):
    """(visit, bucket, groups of every batch), until all steps are made."""
    number, left = 0, STEPS
    while left:
        for bucket in order(keys(SEED, number)[1], len(counts)):
            n_batches = min(left, counts[bucket] // (GROUP * GROUPS))
            shuffled = order(keys(SEED, number)[1], counts[bucket] // GROUP)
            yield number, bucket, [shuffled[b * GROUPS : (b + 1) * GROUPS] for b in range(n_batches)]
            number, left = number + 1, left - n_batches
            if not left:
                break


def test_steps_on_all_rows_are_written_out(prepared, monkeypatch):
    model, rows, counts, _ = prepared
    following = RandomNumbers.uniform
    monkeypatch.setattr(RandomNumbers, "uniform", lambda self, count: following(self, count).double())
    monkeypatch.setattr(EarlyStopping, "restore_best", lambda self: None)
    monkeypatch.setattr(training, "EPOCHS", 2)
    stored = Samples([view.double() for view in model.stored.values], model.stored.present, model.stored.neighbor_ids)
    network = type(model.network)(list(WIDTHS), model.method.config).double()
    network.load_state_dict(model.network.state_dict())
    everything = [rows.read(b, np.arange(count), 1) for b, count in enumerate(counts)]
    values = [
        np.concatenate([stored.values[v].numpy(), *(own.values[v].double().numpy() for own in everything)])
        for v in range(2)
    ]
    mask = np.concatenate([stored.present.numpy(), *(own.present.numpy() for own in everything)])
    bank, buckets = literal_rows()[1], literal_rows()[0]
    flat = [i for own in buckets for i in own]
    twins = {len(bank) + place: bank.index(i) for place, i in enumerate(flat) if i in bank}
    learner = LargeLearner(network, values, mask, len(bank), twins, model.method.config)

    run = TrainState(network, stored, SEED, model.method, {"view_dropout": RATE, "clustering_weight": WEIGHT})
    plan = VisitPlan.of(counts, GROUP, GROUP * GROUPS, STEPS, SEED)
    assert (plan.size, plan.groups) == (GROUP, GROUPS)
    train_on_all(run, rows, plan, ALONE, Checkpoint(), SILENT)

    count = 2 * 2 + model.method.config.n_neighbors * sum(WIDTHS)
    starts, terms = np.cumsum([len(bank), *counts]), []
    for number, bucket, batches in literal_visits(counts):
        for groups in batches:
            members = [[int(starts[bucket]) + g * GROUP + i for i in range(GROUP)] for g in groups]
            draws = [
                uniform(keys(SEED, number)[0], g * GROUP * count, GROUP * count).reshape(GROUP, count) for g in groups
            ]
            terms.append(learner.global_step(members, draws))
    assert len(terms) == STEPS
    found = torch.cat([one.detach().flatten() for one in run.network.parameters()])
    expected = torch.cat([one.detach().flatten() for one in learner.network.parameters()])
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)
    names = ("reconstruction", "robustness", "clustering")
    recorded = np.array([run.history[name] for name in names])
    assert recorded.shape[1] == 2  # the two parts that the training was divided into
    ends = [e for e, part in enumerate(plan.epochs(2)) for visit in part for _ in range(visit.n_batches)]
    for epoch in range(2):
        own = np.mean([step for step, end in zip(terms, ends, strict=True) if end == epoch], axis=0)
        np.testing.assert_allclose(recorded[:, epoch], own, rtol=1e-9)


@pytest.mark.slow
def test_a_large_fit_finds_what_a_fit_in_memory_finds(tmp_path):
    views, mask, labels, ids = unlike_rows(150, sizes=(0.4, 0.35, 0.25))
    data = write_shards(tmp_path / "data", as_table(views, mask, ids), 2)
    config = Config(pretrain_epochs=8, joint_epochs=2, hidden_dim=16, embedding_dim=16, learning_rate=2e-3)
    options = {"config": config, "scaling": "standard", "device": "cpu", "random_state": 0}
    fit_large(data, tmp_path / "out", 3, bank=90, steps=4, batch_size=64, **options)
    table = written(tmp_path / "out")
    large = dict(zip(table["id"].to_pylist(), table["label"].to_pylist(), strict=True))
    missing = [np.where(mask[:, [v]], view, np.nan) for v, view in enumerate(views)]
    memory = URRL(3, **options).fit_predict(missing)
    assert adjusted_rand_score(memory, labels) > 0.95
    assert adjusted_rand_score([large[name] for name in ids], memory) > 0.95
