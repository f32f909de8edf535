"""What is known of the training samples beside their views, where they are trained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from viewfuse.data.known.hints import UNKNOWN
from viewfuse.data.known.knowledge import Knowledge


@dataclass(frozen=True)
class Guidance:
    """What a training is guided by; None for each thing of which nothing is known.

    Attributes
    ----------
    classes : int64 tensor of shape (samples,): known classes, else -1
    doubted : boolean tensor of shape (samples,): known classes that are not followed; None where all are
    pairs : int64 tensor of shape (pairs, 2): numbers of samples
    together : boolean tensor of shape (pairs,): whether those of a pair belong together, else apart
    weights : float32 tensor of shape (samples,): how much each counts
    views : how much each view counts
    """

    classes: Tensor | None = None
    doubted: Tensor | None = None
    pairs: Tensor | None = None
    together: Tensor | None = None
    weights: Tensor | None = None
    views: tuple[float, ...] | None = None

    @classmethod
    def of(cls, known: Knowledge, device: torch.device) -> Guidance:
        """What is known, as tensors."""
        classes = None if known.hints is None else torch.from_numpy(known.hints.codes).to(device)
        weights = None if known.weights is None else torch.from_numpy(known.weights).float().to(device)
        if known.pairs is None:
            return cls(classes, weights=weights, views=known.views)
        rows, together = (torch.from_numpy(one).to(device) for one in (known.pairs.rows, known.pairs.together))
        return cls(classes, None, rows, together, weights, known.views)

    @property
    def followed(self) -> Tensor | None:
        """The classes that are followed, else -1."""
        if self.classes is None or self.doubted is None:
            return self.classes
        return self.classes.masked_fill(self.doubted, UNKNOWN)

    def kept(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether a partition, of shape (samples,), agrees with each class that is followed, then with each pair."""
        found = [np.zeros(0, dtype=bool)]
        if self.followed is not None:
            known = self.followed.cpu().numpy()
            found.append((labels == known)[known != UNKNOWN])
        if self.pairs is not None and self.together is not None:
            one, other = self.pairs.cpu().numpy().T
            found.append((labels[one] == labels[other]) == self.together.cpu().numpy())
        return np.concatenate(found)


UNGUIDED = Guidance()
"""Where nothing is known."""
