"""The checks of scikit-learn, on a network as small as can be: they fit it again and again."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from viewfuse import URRL


@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore:can't perform this test:Warning")
@parametrize_with_checks(
    [URRL(cluster_range=(2, 4), pretrain_epochs=2, joint_epochs=1, hidden_dim=8, embedding_dim=16)]
)
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)
