"""Seeds of trainings, from whatever scikit-learn calls a random state."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from viewfuse.errors import SettingError
from viewfuse.utils.settings import Advice, Setting, wrong


def replicate_seeds(random_state: Any, n_init: Any, usual: int = 1) -> list[int]:
    """One seed per training: that of the random state itself, and others that have nothing to do with it.

    Parameters
    ----------
    n_init : how many, or "auto"
    usual : what "auto" means
    """
    if isinstance(n_init, str) and n_init == "auto":
        n_init = usual
    if not isinstance(n_init, Integral) or isinstance(n_init, bool) or int(n_init) < 1:
        raise wrong("n_init", "'auto' or an integer of at least 1", n_init)
    seed = _seed(random_state)
    others = np.random.SeedSequence([seed, 2**32]).generate_state(int(n_init))[1:]
    return [seed, *(int(other) for other in others)]


def seed_under_scaling(seed: int, place: int) -> int:
    """The seed of a training with one of several scalings: that of the first is the seed itself.

    With equal seeds networks that see nearly the same data agree, however little they find.
    """
    return seed if place == 0 else int(np.random.SeedSequence([seed, 2**33, place]).generate_state(1)[0])


def _seed(random_state: Any) -> int:
    """A seed, without touching the global generator."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, (np.random.RandomState, np.random.Generator)):
        draw = random_state.randint if isinstance(random_state, np.random.RandomState) else random_state.integers
        return int(draw(2**31 - 1))
    if not isinstance(random_state, Integral) or not 0 <= int(random_state) < 2**64:
        in_python = Advice((", None or a ", Setting("RandomState")))
        wanted = " must be an integer from 0 to 2**64 - 1", in_python
        raise SettingError(Setting("random_state"), *wanted, f"; got {random_state!r}")
    return int(random_state)
