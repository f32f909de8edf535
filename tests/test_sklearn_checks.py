"""The checks of scikit-learn, on networks as small as can be: they fit them again and again."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks

from test_methods import BRIEF
from viewfuse import URRL, Config
from viewfuse.methods import estimator_of

QUICK = ("nemo",)
"""The one without a network; those with one share most of their code with URRL."""
SMALL = {**BRIEF, "dsimvc": {**BRIEF["dsimvc"], "hidden_dims": (64,), "latent_dim": 32, "pretrain_epochs": 50,
                             "iterations": 60, "learning_rate": 3e-3}}  # fmt: skip
"""A check wants clusters to be found, which DSIMVC must learn; others find them in a network that learned nothing."""


NOT_EQUAL = {
    "check_sample_weight_equivalence_on_dense_data": "networks learn from random batches, and a copy of a sample is "
    "its nearest neighbour; that weights are repetitions in losses and in k-means is tested in test_weights.py"
}


def small(names):
    return [estimator_of(name)(**SMALL[name]) for name in names]


pytestmark = [
    pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning"),
    pytest.mark.filterwarnings("ignore:the hints name:viewfuse.SuspiciousDataWarning"),  # all of y, and one cluster
    pytest.mark.filterwarnings("ignore:y has the label of every sample:viewfuse.SuspiciousDataWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning"),
    pytest.mark.filterwarnings("ignore:can't perform this test:Warning"),
]


OURS = URRL(8, config=Config(pretrain_epochs=0, joint_epochs=0, hidden_dim=8, embedding_dim=8), scaling="standard")
LONG = (
    "data_not_an_array", "estimators_dtypes", "subset_invariance", "pipeline_consistency", "fit_idempotent",
    "score_takes_y", "dtype_object", "order_invariance", "preserve_dtypes", "weights_pandas", "weights_list",
    "weights_not", "weight_equivalence", "estimators_pickle", "transformer_general", "dont_overwrite",
    "check_clustering", "fit_check_is_fitted", "f_contiguous", "positive_only_tag", "fit2d_1feature", "dict_unchanged",
    "overwrite_params", "fit_returns_self",
)  # fmt: skip
"""Checks that fit again and again, of what test_estimator, test_views, test_small_passes and test_weights test, too."""


def checks(estimator):
    """All checks of scikit-learn; those that take long, and those on arrays in files, are slow tests."""
    for one, check in estimator_checks_generator(estimator):
        name = check.func.__name__
        marks = (
            [pytest.mark.slow] if any(word in name for word in LONG) or check.keywords.get("readonly_memmap") else []
        )
        marks += [pytest.mark.xfail(reason=NOT_EQUAL[name])] if name in NOT_EQUAL else []
        yield pytest.param(one, check, marks=marks, id=f"{type(one).__name__}-{name}{check.keywords or ''}")


@pytest.mark.parametrize(("estimator", "check"), list(checks(OURS)))
def test_scikit_learn_accepts_it(estimator, check):
    check(estimator)


@parametrize_with_checks(small(QUICK))
def test_scikit_learn_accepts_one_without_a_network(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(small(name for name in SMALL if name not in QUICK))
def test_scikit_learn_accepts_all_others(estimator, check):
    check(estimator)
