"""Warnings point at the line of whoever called the package."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest

from viewfuse import URRL, Config, EmptyCellsWarning, IgnoredColumnsWarning, OutOfRangeWarning

VERBS = ("predict", "predict_proba", "transform", "impute", "uncertain", "complete")
KINDS = (EmptyCellsWarning, IgnoredColumnsWarning, OutOfRangeWarning)
SILENT = {("complete", OutOfRangeWarning), ("complete", EmptyCellsWarning), ("impute", OutOfRangeWarning)}
QUICK = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=0), "scaling": "standard"}


@pytest.fixture(scope="module")
def model():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=list("abc"))
    return URRL(2, random_state=0, **QUICK).fit({"x": frame})


@pytest.mark.parametrize(
    ("verb", "kind"), [(verb, kind) for verb in VERBS for kind in KINDS if (verb, kind) not in SILENT]
)
def test_warnings_point_here(model, verb, kind):
    frame = pd.DataFrame(np.zeros((4, 4)), columns=list("abcd"))
    frame.iloc[0, 0] = np.nan
    frame.iloc[1, 1] = 1e6
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        getattr(model, verb)({"x": frame})
    assert {one.filename for one in seen if one.category is kind} == {__file__}


def test_fitting_points_here():
    views = [np.random.default_rng(0).normal(size=(30, 3))]
    views[0][0, 0] = np.nan
    with pytest.warns(EmptyCellsWarning) as seen:
        URRL(2, random_state=0, **QUICK).fit_predict(views)
    assert {one.filename for one in seen} == {__file__}
