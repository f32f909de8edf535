"""One network trained by several processes is the network that one process trains."""

from __future__ import annotations

import multiprocessing
import os
import socket
from dataclasses import replace

import pytest
import torch

from sharded_data import rows, write_shards
from viewfuse import URRL, Config
from viewfuse.distributed.first_pass import BucketReader, Buckets, run_first_pass
from viewfuse.distributed.processes import Processes, joined
from viewfuse.distributed.shards import Shards
from viewfuse.distributed.training import PreparedRows, SharedStep, VisitPlan, train_on_all
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.training import SILENT, TrainState
from viewfuse.errors import Diverged
from viewfuse.methods.urrl.stages import EarlyStopping
from viewfuse.neighbors.index import Samples

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A model of a bank, and all rows with their neighbours in it."""
    folder = tmp_path_factory.mktemp("prepared")
    shards = Shards(write_shards(folder / "data", rows(150)[0], 2))
    buckets = Buckets.of(150, 150, 60)
    run_first_pass(shards, folder / "rows", buckets, ALONE)
    reader = BucketReader(folder / "rows", buckets, 10)
    ids, values = reader.bank()
    short = {"config": Config(pretrain_epochs=1, joint_epochs=1, hidden_dim=8, embedding_dim=8), "scaling": "standard"}
    model = URRL(3, **short, device="cpu", random_state=0).fit(shards.layout.views(values, ids))._model
    found = PreparedRows(folder / "prepared", [4, 6], model.stored.neighbor_ids.shape[2])
    assert found.prepare(reader, shards.layout, model, ALONE) == [150]
    return model, found


def state(model):
    """In float64, with a clustering loss that weighs enough to be seen."""
    stored = Samples([view.double() for view in model.stored.values], model.stored.present, model.stored.neighbor_ids)
    network = type(model.network)([4, 6], model.method.config).double()
    network.load_state_dict(model.network.state_dict())
    return TrainState(network, stored, 0, model.method, {"view_dropout": 0.3, "clustering_weight": 1.0})


def train(prepared, processes, steps=4):
    """Global batches of 10 groups of 4 rows."""
    model, found = prepared
    run = state(model)
    plan = replace(VisitPlan.of([150], 4, 40, steps, seed=3), groups=10)
    train_on_all(run, found, plan, processes, Checkpoint(), SILENT)
    return run


def weights(run):
    return torch.cat([one.detach().flatten() for one in run.network.parameters()])


def _keep_the_last(watch):
    """Only the first process would go back to the best weights, as it alone saves them."""


def _worker(prepared, port, rank, size, path):
    os.environ.update(
        RANK=str(rank), WORLD_SIZE=str(size), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    EarlyStopping.restore_best = _keep_the_last
    by_ray = size == 2
    if by_ray:  # which makes the group before it calls
        torch.distributed.init_process_group("gloo")
    with joined("cpu") as processes:
        run = train(prepared, processes)
        torch.save((weights(run), run.history["total"]), f"{path}-{rank}")
    assert torch.distributed.is_initialized() == by_ray


def trained_by(prepared, size, path):
    """Weights and losses of every process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_worker, args=(prepared, port, rank, size, path)) for rank in range(size)]
    [worker.start() for worker in workers]
    [worker.join(60) for worker in workers]
    assert [worker.exitcode for worker in workers] == [0] * size
    return [torch.load(f"{path}-{rank}") for rank in range(size)]


@pytest.fixture(scope="module")
def alone(prepared):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EarlyStopping, "restore_best", _keep_the_last)
        return train(prepared, ALONE)


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_train_the_network_that_one_alone_trains(prepared, alone, tmp_path, size):
    found = trained_by(prepared, size, tmp_path / "w")
    for own, losses in found:
        assert torch.equal(own, found[0][0])
        assert (own - weights(alone)).abs().max() < 1e-12
        assert losses == pytest.approx(alone.history["total"], abs=1e-12)
    assert (weights(alone) - weights(state(prepared[0]))).abs().max() > 1e-4


def test_the_sizes_of_the_clusters_are_those_of_the_whole_batch(prepared, alone, monkeypatch):
    """What two processes would make that tell each other their gradients only."""

    def of_halves(step, assignment):
        sums = assignment.sum(dim=1, keepdim=True)
        return torch.stack([sums[i % 2 :: 2].sum(dim=0) for i in range(len(sums))])

    monkeypatch.setattr(EarlyStopping, "restore_best", _keep_the_last)
    monkeypatch.setattr(SharedStep, "_sizes", of_halves)
    assert (weights(train(prepared, ALONE)) - weights(alone)).abs().max() > 1e-9


def test_different_weights_are_noticed(prepared, monkeypatch):
    monkeypatch.setattr(Processes, "gather", lambda self, value: [value, value and value + 1])
    monkeypatch.setattr(Processes, "from_first", lambda self, value: value)
    with pytest.raises(Diverged, match="after epoch 1 on all rows the processes have different weights"):
        train(prepared, ALONE)


def test_a_checksum_sees_every_weight_and_its_place(prepared):
    run = state(prepared[0])
    step = SharedStep(run, VisitPlan.of([150], 4, 40, 1, seed=0), ALONE)
    before, centers = step.checksum(), run.network.centers.data
    centers[0, 0] += 1e-15
    assert step.checksum() != before
    centers[0, 0] -= 1e-15
    centers[0, :2] = centers[0, :2].flip(0)
    assert step.checksum() != before


def test_clusters_that_get_worse_are_taken_back(prepared, monkeypatch):
    def spoil(step):
        step.network.centers.data[1:] = 1e3  # nearly all samples are in one cluster

    monkeypatch.setattr(SharedStep, "checksum", spoil)
    run = train(prepared, ALONE)
    assert run.joint_stage.ended
    assert torch.equal(weights(run), weights(state(prepared[0])))
    assert len(run.history["epoch"]) == 1
