"""Wide and sparse views in the speed measurement: data, parts, and lines of the table. No test asserts a time."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from benchmarks.command import _wide_table
from benchmarks.speed import child, wide
from viewfuse.data.views import Views
from viewfuse.reduction.reduce import fit_reduction

TINY = wide.WideSize(
    rows=40, columns=(300, 260), narrow=(8, 6), sparse_rows=30, sparse_columns=20_000, texts=40, words=400, epochs=1,
    portions=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def measured():
    """All parts, measured in this process: new ones take seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wide, "in_child", lambda work, job: work(job))
        return wide.measure_wide(torch.device("cpu"), TINY)


@pytest.fixture
def found(measured):
    """What was measured, to be changed."""
    return copy.deepcopy(measured)


@pytest.mark.slow
def test_every_part_is_measured_and_has_its_bars(found):
    assert list(found) == ["dense", "step", "sparse", "text", "load"]
    for part in ("dense", "sparse", "text"):
        assert found[part]["seconds"] > 0
        assert found[part]["peak_mb"] >= found[part]["more_than_before_mb"]
    assert found["dense"]["how"] == ["pca", "pca"]
    assert found["sparse"]["how"] == ["counts"]
    assert found["step"]["ratio"] == pytest.approx(found["step"]["wide_ms"] / found["step"]["narrow_ms"])
    assert found["step"]["columns"] == [10, 10]  # what the network sees
    assert found["step"]["bars"] == {"ratio": 1.3}
    assert found["text"]["bars"] == {"seconds": 120.0, "peak_mb": 1_500.0}
    assert found["sparse"]["bars"] == {}  # those are for 100,000 rows


@pytest.mark.slow
def test_the_table_says_what_is_kept(found):
    text = _wide_table(found)
    assert "reduction of 40 x (300 + 260), dense" in text
    assert "fit of texts, 40 x (400 + 400 + 400), sparse" in text
    found["step"]["ratio"] = 1.31
    assert _wide_table(found).splitlines()[-1].split()[-3:] == ["1.31", "1.3", "no"]
    found["step"]["ratio"] = 1.3
    assert _wide_table(found).splitlines()[-1].split()[-1] == "yes"


def test_a_part_that_failed_has_no_line(found):
    found["sparse"] = {"failed": "MemoryError: ", "rows": 30, "columns": 300, "bars": {}}
    assert not any("30 x (300)" in what for what, *_ in wide.lines(found))


def test_counts_are_as_sparse_as_asked():
    made = wide.counts(50, 20_000, 0.03)
    assert made.shape == (50, 20_000)
    assert made.has_canonical_format
    assert (np.diff(made.indptr) == 600).all()
    assert made.data.min() >= 1
    assert made.dtype == np.float32
    kind = fit_reduction(Views([made])).front_ends[0].kind
    assert kind.name == "counts"


def test_texts_are_words():
    made = wide.texts(60, 3_500)
    kind = fit_reduction(Views([made])).front_ends[0].kind
    assert kind.name == "words"
    assert 30 < kind.per_row < 400


def test_costs_are_those_of_the_work():
    given, found = child.costs(lambda: np.ones(10_000_000).sum())
    assert given == 10_000_000
    assert found["peak_mb"] >= 240
    assert found["seconds"] > 0
