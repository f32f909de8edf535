"""What shards hold, as checksums: a data set is known again by its values, never by sizes and times alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from viewfuse.distributed.processes import Processes
from viewfuse.distributed.rows.id_hash import mixed
from viewfuse.distributed.rows.shards import Rows, Shards
from viewfuse.utils.threads import side_by_side

_ROWS_AT_A_TIME = 2_048
"""So few that they stay in the processor's cache."""


class Content(NamedTuple):
    """The rows of one shard.

    Attributes
    ----------
    digest : of ids and values, in their order
    changed : when the file was last written to, in nanoseconds; used only with --trust-unchanged
    """

    digest: str
    changed: int


Contents = dict[str, Content]
"""Of all shards, by what they are called."""


def read_contents(saved: Mapping[str, Sequence[Any]]) -> Contents:
    """From JSON."""
    return {name: Content(*own) for name, own in saved.items()}


class Checksum:
    """Adds up the rows of one shard while they are read; one is made before the first is."""

    def __init__(self, path: Path) -> None:
        self._changed = path.stat().st_mtime_ns  # if the file changes from now on, that is later
        self._keys, self._rows = hashlib.blake2b(digest_size=16), hashlib.blake2b(digest_size=16)

    def add(self, rows: Rows) -> None:
        """The next rows."""
        self._keys.update(np.ascontiguousarray(rows.keys).data)
        self._rows.update(_row_sums(rows.values).data)

    def content(self) -> Content:
        """Of all rows so far."""
        return Content(self._keys.hexdigest() + self._rows.hexdigest(), self._changed)


def _row_sums(values: NDArray[np.float32]) -> NDArray[np.uint64]:
    """One number per row: a sum of the bits of its values with random weights, which only 1 change in 2^33 leaves.

    A hash of all bytes would take five times as long.
    """
    bits = np.ascontiguousarray(values).view(np.uint32)
    weights = mixed(np.arange(1, bits.shape[1] + 1, dtype=np.uint64)) | np.uint64(1)  # odd: one change is always seen
    sums = np.empty(len(bits), np.uint64)
    for first in range(0, len(bits), _ROWS_AT_A_TIME):
        part = slice(first, first + _ROWS_AT_A_TIME)
        np.einsum("ij,j->i", bits[part], weights, out=sums[part])
    return sums


def changed_shard(shards: Shards, known: Contents, processes: Processes, trust: bool) -> str | None:
    """In words, a shard whose rows are not the known ones; None where all are. Each process looks at its own.

    Parameters
    ----------
    trust : whether a file of the same size, footer and time counts as the same, without a look at its rows
    """

    def differs(pair: tuple[Path, str]) -> bool:
        path, name = pair
        before = known.get(name)
        if before is None or (trust and path.stat().st_mtime_ns == before.changed):
            return before is None
        return content_of(shards, path).digest != before.digest

    own = processes.own(list(zip(shards.paths, shards.names, strict=True)))
    found = processes.together(lambda: list(side_by_side(differs, own)))
    changed = [path for (path, _), is_other in zip(own, found, strict=True) if is_other]
    paths = [path for own_paths in processes.gather(changed) for path in own_paths]
    cure = "bring the old file back, give another --out, or --force to begin anew"
    return f"{paths[0]} has changed since; {cure}" if paths else None


def content_of(shards: Shards, path: Path) -> Content:
    """Of a shard that is read for nothing else."""
    found = Checksum(path)
    for rows in shards.read(path):
        found.add(rows)
    return found.content()
