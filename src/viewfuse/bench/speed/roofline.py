"""What a training step costs at least: operations and bytes, counted from the shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from viewfuse.methods.urrl.config import Config

_PASSES = 3
"""Forward, and backward for the inputs and for the weights: three products of the same size."""
_WEIGHT_TRAFFIC = 10
"""Per weight: read forward and backward, gradient written, and Adam reads four numbers and writes three."""
_ACTIVATION_TRAFFIC = 4
"""Per activation: written forward and read backward, and the same for its gradient."""


def counted(widths: Sequence[int], settings: Config) -> dict[str, Any]:
    """Operations and bytes of one step of the package, and operations of the plain reference.

    The package asks for one output of each neighbour list; the plain reference computes them all.
    """
    ours, plain = (multiply_adds(widths, settings, asked) for asked in (1, settings.list_length))
    return {
        "gflop_ours": _PASSES * 2 * ours / 1e9,
        "gflop_plain": _PASSES * 2 * plain / 1e9,
        "megabytes": 4 * (_WEIGHT_TRAFFIC * weights(widths, settings) + _traffic(widths, settings)) / 1e6,
        "weights": weights(widths, settings),
    }


def lower_bound(counts: Mapping[str, float], peaks: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds that a step takes at least: arithmetic and traffic may overlap, so the longer one counts."""
    arithmetic = 1e3 * counts["gflop_ours"] / peaks["gflops"]
    traffic = counts["megabytes"] / peaks["copy_gb_per_second"]
    return {"arithmetic_ms": arithmetic, "traffic_ms": traffic, "floor_ms": max(arithmetic, traffic)}


def multiply_adds(widths: Sequence[int], settings: Config, asked: int) -> int:
    """Of the matrix products of one forward pass over both branches; `asked` outputs of each neighbour list."""
    rows, length, size = 2 * settings.batch_size, settings.list_length, settings.embedding_dim
    per_sample = sum(_per_list(width, settings, asked) for width in widths)
    per_sample += _products(size, settings.feedforward_ratio) * len(widths) + 2 * len(widths) ** 2 * size
    embed = sum(_chain(_embed_widths(width + length, settings)) for width in widths)
    decode = sum(_chain(_decode_widths(width, settings)) for width in widths)
    distances = (settings.batch_size + settings.n_clusters) * size
    return rows * (per_sample + embed) + settings.batch_size * (decode + distances)


def _per_list(width: int, settings: Config, asked: int) -> int:
    """One neighbour list: distance code, attention, feed-forward part."""
    length, wide = settings.list_length, width + settings.list_length
    code, attention = length**2 * width, 2 * asked * length * wide
    return code + attention + asked * _products(wide, settings.feedforward_ratio)


def _products(width: int, ratio: int) -> int:
    """Of a token: query, key, value and merge, and both layers of the feed-forward part."""
    return (4 + 2 * ratio) * width**2


def _embed_widths(width: int, settings: Config) -> list[int]:
    return [width, settings.hidden_dim, settings.hidden_dim, settings.embedding_dim]


def _decode_widths(width: int, settings: Config) -> list[int]:
    return [settings.embedding_dim, *[settings.hidden_dim] * 3, width]


def _chain(widths: Sequence[int]) -> int:
    return sum(wide * narrow for wide, narrow in pairwise(widths))


def weights(widths: Sequence[int], settings: Config) -> int:
    """Numbers that are learned, less biases, norms and slopes, which are few."""
    coded = [width + settings.list_length for width in widths]
    blocks = sum(_products(width, settings.feedforward_ratio) for width in (*coded, settings.embedding_dim))
    chains = [_embed_widths(width, settings) for width in coded] + [_decode_widths(width, settings) for width in widths]
    return blocks + sum(_chain(chain) for chain in chains) + settings.n_clusters * settings.embedding_dim


def _traffic(widths: Sequence[int], settings: Config) -> int:
    """Numbers moved for the inputs, read and written once, and for the outputs of the layers."""
    rows, length = 2 * settings.batch_size, settings.list_length
    coded = [width + length for width in widths]
    per_token = 5 + settings.feedforward_ratio  # query, key, mixture, merged, output, and inside the feed-forward part
    outputs = per_token * (sum(coded) + len(widths) * settings.embedding_dim)
    outputs += sum(sum(_embed_widths(width, settings)[1:]) for width in coded)
    decoded = sum(sum(_decode_widths(width, settings)[1:]) for width in widths)
    inputs = 2 * rows * length * sum(widths)
    return inputs + _ACTIVATION_TRAFFIC * (rows * outputs + settings.batch_size * decoded)
