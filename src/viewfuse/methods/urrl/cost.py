"""What a fit will cost: parameters, memory and steps, counted from the shapes; only parameters need torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from viewfuse.methods.urrl.config import Config

_PASSES = 3
"""Forward, and backward for the inputs and for the weights: three products of the same size."""
_OPERATIONS_PER_SECOND = 1e11
"""Of the search for neighbours, roughly: a processor of two cores, set by hand."""
_EVALUATIONS = 10
"""Passes over all samples besides the steps: after each stage, and while the joint stage is watched."""
_EXACT_ROWS = 30_000
"""Rows up to which a sample is compared with all others."""
_AGREEMENT_DEPTH = 9
"""Neighbours that the choice of clusters asks for."""
_PER_PARAMETER = 16
"""Bytes of a weight, its gradient and its two moments."""
_PER_DISTANCE, _DISTANCES_AT_A_TIME = 24, 4_000_000
"""Of the search for neighbours, which is over before training begins: three float64 numbers of each pair."""
_LIBRARIES, _PER_SAMPLE, _SAMPLES_AT_A_TIME = 64 * 2**20, 6_000, 65_536
"""Of libraries that are loaded during the first fit; and of samples while clusters are found and compared, a part at a
time: freed, but in pieces too small to be used again. Measured on eleven shapes (tests/test_memory_limits.py)."""
_COPIES_OF_INPUTS, _COPIES_OF_OUTPUTS = 6, 2
"""Neighbour lists as they are, with noise and coded, and their draws; outputs of layers with their gradients."""


def fit_seconds(n_samples: int, widths: Sequence[int], config: Config, n_scalings: int, step: float) -> float:
    """Seconds that a fit takes at most on a CPU, roughly.

    Parameters
    ----------
    widths : columns per view, after reduction
    n_scalings : how many scalings are tried; 1 where the user names one
    step : seconds of a step, as they were measured
    """
    config, size = config.sized(n_samples), min(n_samples, config.batch_size)
    steps, passes = n_steps(n_samples, config, n_scalings), n_samples / size * (n_scalings + _EVALUATIONS) / _PASSES
    search = 2 * n_samples * min(n_samples, _EXACT_ROWS) * sum(widths) * n_scalings / _OPERATIONS_PER_SECOND
    return (steps + passes) * step + search


def n_steps(n_samples: int, config: Config, n_scalings: int = 3) -> int:
    """Steps of all trainings of a fit that is not ended early."""
    trial, (first, second) = config.trial_epochs(n_samples), config.epochs(n_samples)
    per_epoch = max(1, n_samples // config.batch_size)
    return per_epoch * (n_scalings * trial + first - trial + second)


def fit_bytes(n_samples: int, widths: Sequence[int], config: Config, n_waiting: int = 0) -> int:
    """Bytes that a fit takes, besides the data as they were given; on a CPU within a factor of about two.

    Parameters
    ----------
    widths : columns per view, after reduction
    n_waiting : trainings that wait for their turn: their samples and weights are held
    """
    config = config.sized(n_samples)
    depth, parameters = max(config.search_depth, _AGREEMENT_DEPTH), n_parameters(widths, config)
    per_sample = 4 * sum(widths) + len(widths) * (8 * depth + 1) + 4 * config.embedding_width
    held = n_samples * per_sample * (1 + n_waiting) + 4 * parameters * n_waiting
    training = _PER_PARAMETER * parameters + _step_bytes(widths, config, n_samples)
    passing = _LIBRARIES + _PER_SAMPLE * min(n_samples, _SAMPLES_AT_A_TIME)
    return held + passing + max(training, _PER_DISTANCE * min(n_samples**2, _DISTANCES_AT_A_TIME))


def _step_bytes(widths: Sequence[int], config: Config, n_samples: int) -> int:
    """Of the neighbour lists of a batch, and of what the layers make of them."""
    own = replace(config, batch_size=min(config.batch_size, n_samples))
    inputs = 2 * own.batch_size * config.list_length * sum(widths)
    return 4 * (_COPIES_OF_INPUTS * inputs + _COPIES_OF_OUTPUTS * layer_outputs(widths, own))


def n_parameters(widths: Sequence[int], config: Config) -> int:
    """Numbers that are learned, all of them: those of a network without memory for its weights."""
    from viewfuse.methods.urrl.network import empty_network

    return sum(weight.numel() for weight in empty_network(widths, config).parameters())


def coded_width(width: int, config: Config) -> int:
    """Columns of a view with its distance code, where it has one."""
    return width + config.list_length if config.distance_code else width


def layer_outputs(widths: Sequence[int], config: Config) -> int:
    """Numbers that the layers hand on in one forward pass over both branches."""
    coded = [coded_width(width, config) for width in widths]
    per_token = 5 + config.feedforward_ratio  # query, key, mixture, merged, output, and inside the feed-forward part
    outputs = per_token * (sum(coded) + len(widths) * config.embedding_width)
    outputs += sum(sum(embed_widths(width, config)[1:]) for width in coded)
    decoded = sum(sum(decode_widths(width, config)[1:]) for width in widths)
    return 2 * config.batch_size * outputs + config.batch_size * decoded


def embed_widths(width: int, config: Config) -> list[int]:
    """Widths of the layers that map a view to a token of the view encoder."""
    return [width, config.hidden_width, config.hidden_width, config.embedding_width]


def decode_widths(width: int, config: Config) -> list[int]:
    """Widths of the layers that map an embedding to a view."""
    return [config.embedding_width, *[config.hidden_width] * 3, width]
