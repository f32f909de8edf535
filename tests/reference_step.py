"""Training steps of one network, written out: the numbers of its seed, both branches, losses, gradients, Adam.

All of it is in float64, and nothing of it is shared with the code under test but the weights.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

import reference

INCREMENT, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def keys(seed, epoch):
    """Where the numbers of an epoch begin: those of its draws, and those of its order."""
    return [int(key) for key in np.random.SeedSequence([seed, epoch + 1]).generate_state(2, np.uint64)]


def hashed(state):
    """SplitMix64 without its last shift, in signed 64-bit numbers."""
    state = signed(state)
    state = signed((state ^ (state >> 30)) * FIRST)
    return signed((state ^ (state >> 27)) * SECOND)


def signed(number):
    return (number + 2**63) % 2**64 - 2**63


def order(key, n):
    return sorted(range(n), key=lambda i: hashed(key + i * INCREMENT))


def uniform(key, start, count):
    """The upper 23 bits of each hash, in the middle of their cells."""
    bits = [hashed(key + i * INCREMENT) >> 41 for i in range(start, start + count)]
    return np.array([0.5 + (number + 0.5) / 2**23 for number in bits])


def dropped_views(present, rate, chances, lots):
    kept = [there and chance >= rate for there, chance in zip(present, chances, strict=True)]
    if not any(kept):
        kept[max((v for v in range(len(present)) if present[v]), key=lambda v: lots[v])] = True
    return np.array(kept)


def spoiled(block, valid, draws, config):
    """Noise and dropped features where the list is not padded."""
    out = np.zeros_like(block)
    for place, column in np.ndindex(block.shape):
        draw, rate = draws[place, column], config.feature_dropout
        if valid[place] and draw >= rate:
            out[place, column] = block[place, column] + config.noise * ndtri((draw - rate) / (1 - rate))
    return out


@dataclass
class Lists:
    """What the network is given of a batch."""

    tokens: list
    valid: np.ndarray
    available: np.ndarray

    @classmethod
    def of(cls, samples):
        blocks, valid, available = zip(*samples, strict=True)
        return cls([np.stack(view) for view in zip(*blocks, strict=True)], np.stack(valid), np.stack(available))


class Adam:
    """Adam as its paper has it, with decay as in L2 regularisation; that of torch would import its compiler for 2 s."""

    def __init__(self, weights, lr, weight_decay=0.0):
        self.weights, self.rate, self.decay = list(weights), lr, weight_decay
        self.moments = [[0, torch.zeros_like(own), torch.zeros_like(own)] for own in self.weights]

    def zero_grad(self):
        for weights in self.weights:
            weights.grad = None

    @torch.no_grad()
    def step(self):
        for weights, moments in zip(self.weights, self.moments, strict=True):
            if weights.grad is None:
                continue
            slope = weights.grad + self.decay * weights
            steps, first, second = moments
            moments[:] = steps + 1, 0.9 * first + 0.1 * slope, 0.999 * second + 0.001 * slope.square()
            steps, first, second = moments
            size = (second / (1 - 0.999**steps)).sqrt() + 1e-8
            weights -= self.rate * first / (1 - 0.9**steps) / size


def linear(layer, x):
    return x @ layer.weight.T + layer.bias


def layer_norm(norm, x):
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / (centred.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt() * norm.weight + norm.bias


def attention(query, key, value, bias):
    """A row in which every key is hidden gives zero."""
    blind = torch.isneginf(bias).all(dim=1)
    bias = torch.where(blind[:, None], 0.0, bias)
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5 + bias[:, None, :]
    return torch.where(blind[:, None, None], 0.0, torch.softmax(scores, dim=-1) @ value)


def transformer(block, tokens, bias):
    width, size = tokens.shape[-1], tokens.shape[-1] // block.n_heads
    query, both = linear(block.query, tokens), linear(block.key_value, tokens)
    key, value = both[..., :width], both[..., width:]
    heads = [slice(h * size, (h + 1) * size) for h in range(block.n_heads)]
    mixed = torch.cat([attention(query[..., h], key[..., h], value[..., h], bias) for h in heads], dim=-1)
    x = layer_norm(block.norm_attention, tokens + linear(block.merge, mixed))
    first, _, last = block.feedforward
    return layer_norm(block.norm_feedforward, x + linear(last, linear(first, x).clamp(min=0)))


def fully_connected(layers, x):
    for layer in layers:
        x = linear(layer, x) if hasattr(layer, "in_features") else torch.where(x > 0, x, layer.weight * x)
    return x


def encode(network, lists, config):
    views = []
    for v, encoder in enumerate(network.neighbor_encoders):
        coded = torch.from_numpy(np.stack([reference.cdpe(block) for block in lists.tokens[v]]))
        bias = torch.from_numpy(np.where(lists.valid[:, v], 0.0, -np.inf))
        views.append(fully_connected(network.view_encoder.embed[v], transformer(encoder.block, coded, bias)[:, 0]))
    rows = zip(lists.valid, lists.available, strict=True)
    bias = torch.from_numpy(np.stack([reference.tam(*row, config.imputed_bias) for row in rows]))
    return transformer(network.view_encoder.block, torch.stack(views, dim=1), bias).mean(dim=1)


def loss_rec(rebuilt, values, present):
    errors = [(guess - truth).square().mean(dim=1) for guess, truth in zip(rebuilt, values, strict=True)]
    return (torch.stack(errors, dim=1) * present).sum(dim=1).mean()


def loss_aug(z, z_aug):
    closeness = torch.exp(-(z_aug[:, None] - z[None]).square().sum(dim=2).sqrt())
    return -torch.log(closeness.diagonal() / closeness.sum(dim=1)).mean()


def loss_clu(z, centers):
    kernel = 1 / (1 + (z[:, None] - centers[None]).square().sum(dim=2))
    q = kernel / kernel.sum(dim=1, keepdim=True)
    p = q.detach() ** 2 / q.detach().sum(dim=0)
    p = p / p.sum(dim=1, keepdim=True)
    return (p * (p / q).log()).sum(dim=1).mean()


class Learner:
    """A network that is trained alone, with one Adam.

    Parameters
    ----------
    values, mask : the training samples, as numpy arrays
    rate, weight : view dropout and lambda_2
    """

    def __init__(self, network, values, mask, config, seed, rate, weight, *, joint):
        self.network, self.values, self.mask, self.config = copy.deepcopy(network), values, mask, config
        self.seed, self.rate, self.weight, self.joint = seed, rate, weight, joint
        named = self.network.named_parameters()
        trained = [weights for name, weights in named if joint or name != "centers"]
        self.adam = Adam(
            trained,
            lr=config.rate * (config.joint_factor(len(mask)) if joint else 1.0),
            weight_decay=config.weight_decay,
        )

    def run_epoch(self, epoch):
        """The loss terms of every step."""
        for_draws, for_order = keys(self.seed, epoch)
        n, k, n_views = len(self.mask), self.config.n_neighbors, len(self.values)
        size, rows = min(self.config.batch_size, n), order(for_order, n)
        count = 2 * n_views + k * sum(view.shape[1] for view in self.values)
        terms = []
        for first in range(0, n - size + 1, size):
            draws = uniform(for_draws, first * count, size * count).reshape(size, count)
            terms.append(self.step(rows[first : first + size], draws))
        return terms

    def plain(self, row):
        own = self.mask[row]
        k, depth = self.config.n_neighbors, self.config.donor_depth
        return *reference.knn_imputation(self.values, self.mask, own, row, k, depth), own

    def augmented(self, row, draws):
        n_views, k = len(self.values), self.config.n_neighbors
        kept = dropped_views(self.mask[row], self.rate, draws[:n_views], draws[n_views : 2 * n_views])
        blocks, valid = reference.knn_imputation(self.values, self.mask, kept, row, k, self.config.donor_depth)
        parts = np.split(draws[2 * n_views :].reshape(k, -1), np.cumsum([b.shape[1] for b in blocks])[:-1], axis=1)
        pairs = enumerate(zip(blocks, parts, strict=True))
        return [spoiled(block, valid[v], part, self.config) for v, (block, part) in pairs], valid, kept

    def step(self, rows, draws):
        z = encode(self.network, Lists.of([self.plain(row) for row in rows]), self.config)
        z_aug = z
        if self.config.augmentation:
            augmented = [self.augmented(row, own) for row, own in zip(rows, draws, strict=True)]
            z_aug = encode(self.network, Lists.of(augmented), self.config)
        rebuilt = [fully_connected(decoder, z_aug) for decoder in self.network.decoders]
        values = [torch.from_numpy(view[rows]) for view in self.values]
        terms = [
            loss_rec(rebuilt, values, torch.from_numpy(self.mask[rows])),
            loss_aug(z, z_aug) if self.config.augmentation else z.new_zeros(()),
            loss_clu(z_aug, self.network.centers) if self.joint else z.new_zeros(()),
        ]
        self.adam.zero_grad()
        (terms[0] + self.config.robustness_weight * terms[1] + self.weight * terms[2]).backward()
        self.adam.step()
        return [float(term.detach()) for term in terms]
