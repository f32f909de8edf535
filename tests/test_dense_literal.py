"""Fully connected networks beside a literal version: every number of every replicate in plain loops, in float64."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from viewfuse.engine.replicates import stack, unstack
from viewfuse.nn.dense import MLP, BatchNorm
from viewfuse.nn.layers import LayerNorm, PReLU, linear, start_weights, times

N_REPLICATES, N_ROWS, WIDTH = 3, 5, 2
SHOWN = [[True, False, True, True, False], [False, False, True, False, False], [False] * 5]
"""Three rows count, one, and none."""


def assert_close(found, expected, rtol=1e-7, atol=1e-9):
    """As torch's, which imports a symbolic algebra first."""
    np.testing.assert_allclose(found.detach().numpy(), expected.detach().numpy(), rtol=rtol, atol=atol)


def drawn(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inputs(n_rows=N_ROWS, width=WIDTH):
    """Columns with units and offsets, other ones in each replicate."""
    units, offsets = torch.tensor([1.0, 1000.0]).repeat(2)[:width], torch.tensor([50.0, -7.0]).repeat(2)[:width]
    each = torch.arange(1, N_REPLICATES + 1, dtype=torch.float64)[:, None, None]
    return ((drawn(N_REPLICATES, n_rows, width) * units + offsets) * each).requires_grad_()


def stacked_norm(width=WIDTH):
    """With weights, biases, means and variances of each replicate."""
    norm = BatchNorm(width).double()
    for number, name in enumerate(("weight", "bias", "mean", "variance")):
        getattr(norm, name).data = drawn(N_REPLICATES, width, seed=10 + number) + 0.5
    return norm


def literal_norm(x, weight, bias, mean, variance, shown=None, training=True):
    """Of one replicate, column by column: what comes out, and the mean and variance that are kept for later."""
    counted = [i for i in range(len(x)) if shown is None or shown[i]]
    out, means, variances = torch.zeros_like(x), mean.clone(), variance.clone()
    for c in range(x.shape[1]):
        centre, spread = mean[c], variance[c]
        if training:
            n = max(1, len(counted))
            centre = sum((x[i, c] for i in counted), x.new_zeros(())) / n
            spread = sum(((x[i, c] - centre) ** 2 for i in counted), x.new_zeros(())) / n
            if counted:
                means[c] = 0.9 * mean[c] + 0.1 * centre.detach()
                variances[c] = 0.9 * variance[c] + 0.1 * spread.detach() * n / max(1, n - 1)
        for i in range(len(x)):
            out[i, c] = (x[i, c] - centre) / (spread + 1e-5) ** 0.5 * weight[c] + bias[c]
    return out, means, variances


def gradients_of(number, leaves):
    for one in leaves:
        one.grad = None
    number.backward()
    return [one.grad for one in leaves]


@pytest.mark.parametrize(
    ("n_rows", "shown", "training"),
    [(5, None, True), (2, None, True), (1, None, True), (5, SHOWN, True), (5, None, False), (5, SHOWN, False)],
)
def test_batch_normalisation_is_written_out(n_rows, shown, training):
    norm, x = stacked_norm().train(training), inputs(n_rows)
    leaves = [x, norm.weight, norm.bias]
    before = [one.detach().clone() for one in (norm.mean, norm.variance)]
    rows = zip(x, norm.weight, norm.bias, *before, shown or [None] * N_REPLICATES, strict=True)
    expected = [literal_norm(*own, training) for own in rows]
    weights = drawn(*x.shape, seed=99)
    gradients = gradients_of((torch.stack([own[0] for own in expected]) * weights).sum(), leaves)
    found = norm(x, None if shown is None else torch.tensor(shown))
    assert_close(found, torch.stack([own[0] for own in expected]))
    assert_close(norm.mean, torch.stack([own[1] for own in expected]))
    assert_close(norm.variance, torch.stack([own[2] for own in expected]))
    for own, other in zip(gradients_of((found * weights).sum(), leaves), gradients, strict=True):
        assert_close(own, other, rtol=1e-5, atol=1e-9)


def literal_mlp(mlp, x, shown, factors):
    """Of one replicate; `factors` are what dropout multiplies each layer's numbers with."""
    last, left = len(mlp.linears) - 1, list(factors)
    for i, layer in enumerate(mlp.linears):
        x = torch.stack(
            [torch.stack([(row * w).sum() + b for w, b in zip(layer.weight, layer.bias, strict=True)]) for row in x]
        )
        if i < last or ENDS[mlp.name]:
            if mlp.norms is not None:
                norm = mlp.norms[i]
                x, mean, variance = literal_norm(
                    x, norm.weight, norm.bias, norm.mean, norm.variance, shown, mlp.training
                )
                norm.mean.copy_(mean)
                norm.variance.copy_(variance)
            x = torch.where(x > 0, x, 0.0)
        if i < last and left:
            x = x * left.pop(0)
    assert not left
    return x


ENDS = {"plain": False, "ends": True, "normed": False, "normed ends": True}
DROPS = {"plain": 0.25, "ends": 0.0, "normed": 0.5, "normed ends": 0.25}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", list(ENDS))
def test_a_fully_connected_network_is_written_out(name, training):
    widths, ends, rate = [2, 4, 3, 2], ENDS[name], DROPS[name]
    made = []
    for seed in range(N_REPLICATES):
        mlp = MLP(widths, norm="normed" in name, ends=ends, dropout=rate).double()
        start_weights(mlp, torch.Generator().manual_seed(seed))
        mlp.name = name
        made.append(mlp.train(training))
    together, asked, x = stack(copy.deepcopy(made)), [], inputs().detach() / 100

    def dropout(shape, rate):
        asked.append((shape, rate))
        return (drawn(*shape, seed=len(asked)) > rate) / (1 - rate)

    found = together(x, torch.tensor(SHOWN), dropout)
    expected_calls = [((3, 5, 4), rate), ((3, 5, 3), rate)] if rate and training else []
    assert asked == expected_calls
    factors = [
        (drawn(*shape, seed=number) > rate) / (1 - rate) for number, (shape, rate) in enumerate(expected_calls, 1)
    ]
    for r, mlp in enumerate(made):
        with torch.no_grad():
            own = literal_mlp(mlp, x[r], SHOWN[r], [one[r] for one in factors])
        assert_close(found[r], own)
    copies = copy.deepcopy(made)
    unstack(together, copies)  # what is kept for later goes with the weights
    for own, other in zip(copies, made, strict=True):
        for one, known in zip(own.buffers(), other.buffers(), strict=True):
            assert_close(one, known)


def test_weights_start_one_after_another_within_their_bounds():
    mlp = MLP([3, 50, 2], norm=True)
    start_weights(mlp, torch.Generator().manual_seed(4))
    draws = torch.Generator().manual_seed(4)
    for layer, width in zip(mlp.linears, (3, 50), strict=True):
        for weights in (layer.weight, layer.bias):
            expected = (2 * torch.rand(weights.shape, generator=draws) - 1) / width**0.5
            assert_close(weights.detach(), expected, rtol=0, atol=1e-6)
    (norm,) = mlp.norms
    for name, value in (("weight", 1.0), ("bias", 0.0), ("mean", 0.0), ("variance", 1.0)):
        assert getattr(norm, name).tolist() == [value] * 50


def test_layers_of_several_replicates_are_written_out():
    x, matrix = drawn(N_REPLICATES * 4, 2, 3), drawn(N_REPLICATES, 3, 5, seed=1) - 0.5
    weight, bias = drawn(N_REPLICATES, 5, 3, seed=2) - 0.5, drawn(N_REPLICATES, 5, seed=3)
    multiplied, shifted = times(x, matrix), linear(x, weight, bias)
    norm, bent = LayerNorm(3).double(), PReLU().double()
    norm.weight.data, norm.bias.data = drawn(N_REPLICATES, 3, seed=4), drawn(N_REPLICATES, 3, seed=5)
    bent.weight.data = drawn(N_REPLICATES, 1, seed=6)
    slopes, scales, shifts = bent.weight.tolist(), norm.weight.tolist(), norm.bias.tolist()
    normed, prelu = norm(x / 100 + 300).detach(), bent(x - 0.5).detach()
    for row in range(len(x)):
        r = row // 4
        for token in range(2):
            own = x[row, token]
            for c in range(5):
                assert float(multiplied[row, token, c]) == pytest.approx(float((own * matrix[r, :, c]).sum()))
                assert float(shifted[row, token, c]) == pytest.approx(float((own * weight[r, c]).sum() + bias[r, c]))
            numbers = (own / 100 + 300).tolist()
            mean = sum(numbers) / 3
            spread = sum((number - mean) ** 2 for number in numbers) / 3
            for c in range(3):
                scaled = (numbers[c] - mean) / (spread + 1e-5) ** 0.5
                assert float(normed[row, token, c]) == pytest.approx(scaled * scales[r][c] + shifts[r][c])
                y = float(own[c]) - 0.5
                assert float(prelu[row, token, c]) == pytest.approx(y if y > 0 else slopes[r][0] * y)
