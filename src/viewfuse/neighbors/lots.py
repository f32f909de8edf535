"""Lots that decide between rows at equal distances, which are common in binary views.

A lot belongs to a view, a query and a row, and comes from what the two samples hold. So it depends neither on the order
of the rows nor on the batch, no row is everybody's neighbour, and views that have nothing in common share none.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

STRIDE = -0x61C8864680B583EB
"""An odd number whose multiples are spread evenly over all 64-bit numbers."""
_FACTORS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)
"""Of the finaliser of splitmix64."""


class Lots(NamedTuple):
    """Lots of one view.

    Attributes
    ----------
    queries : int64 tensor of shape (queries,), see `row_lookup.content_keys`
    rows : int64 tensor of shape (rows of the pool,), see `row_keys`
    """

    queries: Tensor
    rows: Tensor

    def padded(self, length: int) -> Lots:
        """With rows of no meaning up to `length`."""
        return Lots(self.queries, functional.pad(self.rows, (0, length - len(self.rows))))

    def take(self, some: Tensor | slice) -> Lots:
        """Those of some queries."""
        return Lots(self.queries[some], self.rows)

    def of(self, rows: Tensor) -> Tensor:
        """Lots of `rows`, of shape (queries, rows): float64 numbers from 0 to below 2; the smaller is nearer."""
        return self._draw(self.rows[rows])

    def of_all(self) -> Tensor:
        """Lots of all rows, of shape (queries, rows of the pool)."""
        return self._draw(self.rows)

    def _draw(self, rows: Tensor) -> Tensor:
        # The product wraps around: its upper bits depend on all bits of both. Positive floats are in the order of their
        # bits, and torch finds the least of floats twenty times as fast as that of integers.
        return (rows ^ self.queries[:, None]).mul_(STRIDE).bitwise_and_(2**62 - 1).view(torch.float64)


def row_keys(keys: Tensor, view: int) -> Tensor:
    """What `Lots` needs of the rows of a view, given their keys, see `row_lookup.content_keys`."""
    return _mixed(keys + view)


def _mixed(keys: Tensor) -> Tensor:
    """The finaliser of splitmix64, with signed shifts: every bit of the result depends on every bit of the key."""
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        keys = (keys ^ (keys >> shift)) * factor
    return keys ^ (keys >> 31)
