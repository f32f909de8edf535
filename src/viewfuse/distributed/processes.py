"""The processes that train one model together, and what they tell each other. One process alone needs nothing.

`torchrun` and Ray Train start the processes; nothing else in the package imports torch.distributed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from viewfuse.errors import ViewfuseError
from viewfuse.utils.jobs import chosen_device, side_by_side

S = TypeVar("S")
T = TypeVar("T")
_PATIENCE = timedelta(days=1)
"""Others wait while the first process fits the bank; a process that is lost is noticed by who started it."""


class Processes(NamedTuple):
    """One of the processes that work together: its number, how many there are, and where it computes."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        """Whether it is the one that decides and writes."""
        return self.rank == 0

    def sum_(self, numbers: Tensor) -> Tensor:
        """The sum over all processes, in place, the same to the bit in each."""
        if self.size > 1:
            torch.distributed.all_reduce(numbers)
        return numbers

    def gather(self, value: T) -> list[T]:
        """What each process has, in the order of their numbers."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(found, value)
        return found

    def from_first(self, value: T) -> T:
        """What the first process has."""
        return self.gather(value)[0]

    def together(self, work: Callable[[], T]) -> T:
        """What `work` gives in this process; an error in one process is one in all."""
        error, result = None, None
        try:
            result = work()
        except ViewfuseError as found:
            error = found
        except (MemoryError, OSError) as found:
            if self.size == 1:
                raise
            # the others would wait for this process for ever
            error = ViewfuseError(f"process {self.rank}: {type(found).__name__}: {found}")
        errors = [one for one in self.gather(error) if one is not None]
        if errors:
            raise errors[0]
        return cast(T, result)

    def map(self, work: Callable[[S], T], items: Sequence[S], *, share: int = 1) -> list[T]:
        """What `work` gives for all items, in their order: each process does its part of them, in threads.

        `share` is that of `side_by_side`.
        """
        own = self.together(lambda: list(side_by_side(work, items[self.rank :: self.size], share=share)))
        found: list[Any] = [None] * len(items)
        for rank, part in enumerate(self.gather(own)):
            found[rank :: self.size] = part
        return found

    def first(self, work: Callable[[], T]) -> T:
        """What `work` gives in the first process, while the others wait."""
        return cast(T, self.from_first(self.together(lambda: work() if self.is_first else None)))


def attempt() -> str:
    """How often torchrun started the processes again after one was lost."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


@contextmanager
def joined(name: str = "auto") -> Iterator[Processes]:
    """The process that calls, among those that torchrun or Ray Train started; alone otherwise.

    Of several GPUs each process of a machine takes its own. After a restart the store of torchrun still holds the
    addresses of those that are gone: every attempt has a part of the store of its own.
    """
    device = chosen_device(name)
    if device.type == "cuda":
        if name in ("auto", "cuda"):
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    group: Any = torch.distributed
    known = group.is_available() and group.is_initialized()  # by Ray Train
    if not known and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Processes(0, 1, device)
        return
    if not known:
        store, rank, size = next(group.rendezvous("env://", timeout=_PATIENCE))
        own = group.PrefixStore(f"viewfuse-{attempt()}", store)
        shared = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > torch.cuda.device_count()
        backend = "gloo" if device.type == "cpu" or shared else "cpu:gloo,cuda:nccl"  # for GPUs of their own
        group.init_process_group(backend, store=own, rank=rank, world_size=size, timeout=_PATIENCE)
    try:
        yield Processes(group.get_rank(), group.get_world_size(), device)
    finally:
        if not known:
            group.destroy_process_group()
