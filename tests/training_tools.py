"""Training for tests: both stages of one or several networks, without choices around them."""

from __future__ import annotations

from torch import Generator

from viewfuse.engine.training import check_diverged
from viewfuse.methods.urrl.losses_and_augmentation import URRLMethod
from viewfuse.methods.urrl.stages import init_state, planned_epochs, pretrain, train_jointly
from viewfuse.neighbors.index import index_training_set
from viewfuse.nn.layers import start_weights


def drawn(layer):
    """A layer or block with weights."""
    start_weights(layer, Generator().manual_seed(0))
    return layer


def train(stored, config, seed):
    """Both stages of Algorithm 2."""
    return train_replicates([stored], config, [seed])[0]


def train_replicates(sets, config, seeds):
    """One training per set of samples and seed."""
    runs = [init_state(samples, config, seed) for samples, seed in zip(sets, seeds, strict=True)]
    pretrain(runs, planned_epochs(runs[0]).pretraining)
    check_diverged(runs)
    train_jointly(runs)
    return runs


def index_samples(values, present, config):
    """Training samples with as many neighbours as the configuration asks for."""
    return index_training_set(values, present, URRLMethod(config).neighbor_depth)
