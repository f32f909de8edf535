"""Training in stages: several networks side by side, each on its own samples, for methods with losses of their own.

A stage goes over a list of elements, epoch by epoch, in batches of equal size. What an element is, its method knows: a
row, a row for each view, a pair of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from viewfuse.engine.graphed_step import GraphedStep, tensor_cores
from viewfuse.engine.progress import Progress
from viewfuse.engine.rng import Dropout, epoch_keys, shuffled
from viewfuse.engine.stacked_replicates import stack, unstack
from viewfuse.errors import Diverged
from viewfuse.neighbors.samples import Samples
from viewfuse.nn.optimizers import Adam
from viewfuse.nn.streams import join_streams
from viewfuse.utils.settings import Setting

Loss = Callable[[Tensor], Mapping[str, Tensor]]
"""From a batch of elements, of shape (replicates, batch, numbers of an element), to terms of shape (replicates,)."""
History = dict[str, list[Any]]


@dataclass(frozen=True)
class Stage:
    """How long, and in which steps, networks are trained with one loss.

    Attributes
    ----------
    rate : learning rate of Adam
    last : what becomes of the last batch of an epoch: where it would be short, "spread" makes all batches a little
        smaller, so that steps can be recorded, and "drop short" leaves it out; "drop" leaves it out even if it is
        full. The only batch of an epoch is always kept.
    same_adam : whether to keep the Adam of the stage before, if there was one
    """

    name: str
    epochs: int
    batch_size: int
    rate: float
    last: Literal["spread", "drop short", "drop"] = "spread"
    same_adam: bool = False

    def steps(self, n_elements: int) -> tuple[int, int]:
        """Steps of an epoch, and elements of each."""
        started = -(-n_elements // self.batch_size)
        if self.last == "spread":
            return started, n_elements // started
        whole = n_elements // self.batch_size if self.last == "drop short" else started - 1
        return max(1, whole), min(self.batch_size, n_elements)


class SideBySide:
    """Networks with their samples, through all stages of a method.

    Parameters
    ----------
    networks : on the device of the samples
    sets : samples of each, of equal shapes
    seeds : root of every random number of each

    Attributes
    ----------
    network : all of them as one, see `viewfuse.engine.stacked_replicates.stack`
    values : per view a tensor of shape (replicates, samples, columns)
    present : boolean tensor of shape (replicates, samples, views)
    each : numbers of the replicates, of shape (replicates, 1)
    """

    def __init__(
        self, networks: Sequence[nn.Module], sets: Sequence[Samples], seeds: Sequence[int], *, progress: bool = False
    ) -> None:
        self.network: Any = stack(networks)
        self.values = [torch.stack(views) for views in zip(*(own.values for own in sets), strict=True)]
        self.present = torch.stack([own.present for own in sets])
        self.device = self.present.device
        self.dropout = Dropout(seeds, self.device)
        self.histories: list[History] = [{"epoch": [], "stage": [], "total": [], "seconds": []} for _ in seeds]
        self._networks, self._seeds, self._progress = networks, list(seeds), progress
        self.each = torch.arange(len(seeds), device=self.device)[:, None]
        self._adam: Adam | None = None

    def view(self, v: int, rows: Tensor) -> Tensor:
        """A view of the samples at `rows`, of shape (replicates, batch), as (replicates, batch, columns)."""
        return self.values[v][self.each, rows]

    def has(self, rows: Tensor) -> Tensor:
        """Which views the samples at `rows` have, of shape (replicates, batch, views)."""
        return self.present[self.each, rows]

    def run(
        self, stage: Stage, elements: Tensor, loss: Loss, after_epoch: Callable[[int], None] = lambda epoch: None
    ) -> None:
        """Train for a stage; `elements` of shape (replicates, elements, numbers of an element)."""
        if not stage.epochs:
            return
        if self._adam is None or not stage.same_adam:
            on_gpu = self.device.type == "cuda"
            self._adam = Adam(self.network.parameters(), lr=stage.rate, fused=True, capturable=on_gpu)
        self.network.train()
        steps = _Steps(self, stage, elements, loss, self._adam)
        with Progress(shown=self._progress) as progress:
            progress.expect(stage.epochs)
            progress.begin(stage.name)
            for epoch in range(stage.epochs):
                began = time.perf_counter()
                keys = epoch_keys(self._seeds, len(self.histories[0]["epoch"])).to(self.device)
                self.dropout.begin(keys[:, 0])
                with tensor_cores(self.device):
                    terms = steps.run(shuffled(keys[:, 1], elements.shape[1]))
                self.record(stage.name, terms, time.perf_counter() - began)
                after_epoch(epoch)
                progress.advance(self.histories[0]["total"][-1])
        self.network.eval()
        self.network.zero_grad()

    def record(self, stage: str, terms: Mapping[str, Tensor], seconds: float) -> None:
        """Keep the means of an epoch, of terms of shape (steps, replicates); stops where one is not finite."""
        total = torch.stack(list(terms.values())).sum(dim=0)
        for r, history in enumerate(self.histories):
            epoch = len(history["epoch"]) + 1
            row: dict[str, Any] = {name: float(own[:, r].mean()) for name, own in terms.items()}
            broken = [name for name, mean in row.items() if not torch.isfinite(torch.tensor(mean))]
            if broken:
                raise Diverged(
                    f"the {broken[0]} loss is not finite in epoch {epoch} (seed {self._seeds[r]}); lower ",
                    Setting("learning_rate"),
                    ", or use ",
                    Setting("scaling", "minmax"),
                )
            row |= {"epoch": epoch, "stage": stage, "total": float(total[:, r].mean()), "seconds": seconds}
            for name, value in row.items():
                history.setdefault(name, [0.0] * (epoch - 1)).append(value)
            for name in history.keys() - row.keys():
                history[name].append(0.0)

    def finish(self) -> list[History]:
        """Write what was learned into the networks that were given; returns their histories."""
        unstack(self.network, self._networks)
        for network in self._networks:
            network.eval()
        return self.histories


class _Steps:
    """The steps of an epoch; all that changes lies at a fixed place, so that a step can be recorded and replayed."""

    def __init__(self, side: SideBySide, stage: Stage, elements: Tensor, loss: Loss, adam: Adam) -> None:
        steps, size = stage.steps(elements.shape[1])
        self._elements, self._loss, self._adam = elements, loss, adam
        self._each = side.each
        self._order = torch.zeros(steps, len(elements), size, dtype=torch.int64, device=side.device)
        self._done = torch.zeros(1, dtype=torch.int64, device=side.device)
        self._terms: dict[str, Tensor] = {}
        self._step = GraphedStep(self._update, side.device, len(side.values))

    def run(self, order: Tensor) -> dict[str, Tensor]:
        """One epoch in this order, of shape (replicates, elements); terms of shape (steps, replicates), on the CPU."""
        steps, _, size = self._order.shape
        self._order.copy_(torch.unflatten(order[:, : steps * size], 1, (steps, size)).transpose(0, 1))
        self._done.zero_()
        for _ in range(steps):
            self._step()
        return {name: own.cpu() for name, own in self._terms.items()}

    def _update(self) -> None:
        picked = self._elements[self._each, self._order.index_select(0, self._done)[0]]
        self._adam.zero_grad()
        terms = self._loss(picked)
        # The sum over replicates gives each the gradient of its own loss.
        torch.autograd.backward(torch.stack(list(terms.values())).sum())
        join_streams("gradients")
        self._adam.step()
        for name, own in terms.items():
            if name not in self._terms:  # in the first call, which is never recorded
                self._terms[name] = own.new_zeros(self._order.shape[:2])
            self._terms[name].index_copy_(0, self._done, own.detach()[None])
        self._done += 1
        join_streams()
