"""What each trick of the training step is worth on a CPU, measured beside the same step without it.

Run: python -m benchmarks.studies.speed.tricks
"""

from statistics import median

import torch
from torch import nn

from benchmarks.reference.model import PlainNetwork, PlainTraining
from benchmarks.speed.adapter import OurTraining, plain_batch, scaled_table
from benchmarks.speed.child import handwritten
from benchmarks.speed.measure import interleaved
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.losses_and_augmentation import draws_per_sample, two_branches, view_dropout_rate
from viewfuse.methods.urrl.network import Mask, TransformerBlock
from viewfuse.nn.layers import PReLU

CPU, SETTINGS = torch.device("cpu"), Config(n_clusters=10, clustering_weight=0.1)


def there_and_back(module, x, *more):
    """Forward and backward."""

    def work():
        for _ in range(20):
            module(x, *more).sum().backward()

    return work


def updates(optimizer):
    """Twenty updates."""
    return lambda: [optimizer.step() for _ in range(20)]


def with_gradients():
    """The weights of a plain network, each with a gradient."""
    weights = list(PlainNetwork((240, 76, 216, 47, 64, 6), SETTINGS).parameters())
    for weight in weights:
        weight.grad = torch.rand_like(weight)
    return weights


def show(name, with_trick, without, portions=9):
    """Median seconds of both and their ratio."""
    times = {
        key: median(part) for key, part in interleaved({"with": with_trick, "without": without}, portions, CPU).items()
    }
    print(
        f"{name}: {times['without'] / times['with']:.2f} times ({times['with']:.4f} s against {times['without']:.4f} s)"
    )


def main():
    """All tricks, one line each."""
    x = torch.randn(128, 256, requires_grad=True)
    show("PReLU as lerp", there_and_back(PReLU(), x), there_and_back(nn.PReLU(), x))
    block, tokens = TransformerBlock(244, 1, 488), torch.randn(128, 4, 244)
    mask = Mask.of(torch.zeros(128, 4))
    one, all_four = slice(0, 1), slice(None)
    show("one output of four", there_and_back(block, tokens, mask, one), there_and_back(block, tokens, mask, all_four))
    fused, plain = (
        torch.optim.Adam(with_gradients(), 3e-4, weight_decay=4e-5, fused=whole or None) for whole in (True, False)
    )
    show("Adam in one call", updates(fused), updates(plain))

    table = scaled_table(handwritten()[0])
    ours, theirs = OurTraining(table, SETTINGS, 0, CPU), PlainTraining(table, SETTINGS, 0, CPU)
    stored, rows, rate = ours.stored, torch.arange(64), view_dropout_rate(ours.stored.present)
    draws = torch.rand(1, 64, sum(draws_per_sample(stored, SETTINGS)))
    steps = len(theirs.loader)
    gather = lambda: [two_branches(stored, rows[None], SETTINGS, rate, draws) for _ in range(steps)]  # noqa: E731
    show("an epoch of batches gathered at once", gather, lambda: list(theirs.loader), portions=5)

    network, batch = ours.networks[0], two_branches(stored, rows[None], SETTINGS, rate, draws)[1]
    parts = plain_batch(stored, rows, SETTINGS, rate, draws)
    halves = [
        type(batch)(part["tokens"], part["filled"], part["have"]) for part in (parts["plain"], parts["augmented"])
    ]
    together = lambda: [network.encode(batch).sum().backward() for _ in range(5)]  # noqa: E731
    apart = lambda: [network.encode(half).sum().backward() for _ in range(5) for half in halves]  # noqa: E731
    show("both branches in one pass", together, apart)

    pair = OurTraining(table, SETTINGS, 0, CPU, n_replicates=2)
    twice = lambda: [ours.run_epoch(0), ours.run_epoch(1)]  # noqa: E731
    show("two networks side by side", lambda: pair.run_epoch(0), twice, portions=3)


if __name__ == "__main__":
    main()
