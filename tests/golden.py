"""Golden numbers of published methods, and how they get into our networks and out of our training."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from viewfuse.engine.training import Training
from viewfuse.methods import estimator_of
from viewfuse.neighbors.index import Samples

FOLDER = Path(__file__).parents[2] / "shared" / "golden"
needs_golden = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs golden numbers of the published programs, which do not come with the project"
)


def golden(name):
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: torch.from_numpy(np.array(file[key])) for key in file.files}


def close(found, wanted, tolerance=1e-9):
    if isinstance(found, torch.Tensor):
        found = found.detach()
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance)


def samples_of(numbers, prefix="", rows=None):
    """The samples of a run, at these rows, in float64; rows that are missing become zero."""
    mask = numbers[f"{prefix}mask"].bool()
    values = [numbers[f"{prefix}x{v}"] * mask[:, v, None] for v in range(mask.shape[1])]
    found = Samples(values, mask, torch.empty(*mask.shape, 0, dtype=torch.int64))
    return found if rows is None else found.take(rows)


def network_of(name, samples, **params):
    """A method, and its network in float64 with weights that mean nothing yet."""
    method = estimator_of(name)(3, device="cpu", **params)
    network = method.empty([view.shape[1] for view in samples.values]).to_empty(device="cpu").double()
    method.start(network, 0)
    return method, network


@torch.no_grad()
def put(mlp, flat, running=None):
    """Weights of a fully connected network from one vector, and what its normalisations keep."""
    places = []
    for i, linear in enumerate(mlp.linears):
        places += [linear.weight, linear.bias]
        if mlp.norms is not None and i < len(mlp.norms):
            places += [mlp.norms[i].weight, mlp.norms[i].bias]
    _pour(places, flat)
    if running is not None:
        _pour([one for norm in mlp.norms for one in (norm.mean, norm.variance)], running)


def _pour(places, flat):
    parts = torch.split(flat, [one.numel() for one in places])
    for place, part in zip(places, parts, strict=True):
        place.copy_(part.view(place.shape))


def put_all(parts, numbers, prefix, running=False):
    """Weights of parts of a network by their golden names."""
    for name, mlp in parts.items():
        put(mlp, numbers[prefix + name], numbers[f"{prefix}{name}_running"] if running else None)


def check_weights(parts, numbers, prefix, tolerance=1e-9):
    """Compare trained weights, but for biases before a normalisation, which mean nothing."""
    for name, mlp in parts.items():
        wanted = copy.deepcopy(mlp)
        put(wanted, numbers[prefix + name])
        for i, (ours, theirs) in enumerate(zip(mlp.linears, wanted.linears, strict=True)):
            close(ours.weight, theirs.weight.detach(), tolerance)
            if mlp.norms is None or i >= len(mlp.norms):
                close(ours.bias, theirs.bias.detach(), tolerance)
        for ours, theirs in zip(mlp.norms or (), wanted.norms or (), strict=True):
            close(ours.weight, theirs.weight.detach(), tolerance)
            close(ours.bias, theirs.bias.detach(), tolerance)


@torch.no_grad()
def trained(method, network, samples, *, beside):
    """Train by the method's own loop; `beside` another network with other samples, in one stack."""
    other, others = (
        copy.deepcopy(network),
        Samples([1.1 * x for x in samples.values], samples.present, samples.neighbor_ids),
    )
    for one in other.parameters():
        one.mul_(0.9)
    networks, sets = ([other, network], [others, samples]) if beside else ([network], [samples])
    with torch.enable_grad():
        method.train(networks, sets, range(len(sets)))
    return network


@pytest.fixture
def steps(monkeypatch):
    """Batches in the order of the elements; what is recorded step by step, as (stage, terms of all networks)."""
    found, record = [], Training.record

    def spy(training, stage, terms, seconds):
        found.append((stage, {name: own.clone() for name, own in terms.items()}))
        record(training, stage, terms, seconds)

    monkeypatch.setattr(Training, "record", spy)
    monkeypatch.setattr("viewfuse.engine.training.shuffled", lambda keys, n: torch.arange(n).expand(len(keys), -1))
    return found


def term(steps, *names, replicate=-1):
    """Sum of terms of one network step by step, through all stages; all terms without names."""
    return torch.cat([sum(terms[name][:, replicate] for name in names or terms) for _, terms in steps])
