"""Tables that are larger than the memory, and how much of it is left."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from conftest import make_blobs
from viewfuse import URRL, CannotWrite, Config, NotEnoughMemory, Views
from viewfuse.baselines import filled_by_mean
from viewfuse.utils import memory


@pytest.fixture
def ask_always(monkeypatch):
    """As for large tables, so that small ones will do."""
    monkeypatch.setattr(memory, "_LITTLE", 0)


def test_little_is_taken_without_asking(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: pytest.fail("asked"))
    assert memory.room((1, 100)).shape == (1, 100)


def test_large_tables_are_kept_on_disk(ask_always, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 4 * 40)
    small, large = memory.room((5, 2)), memory.room((11, 2))
    assert type(small) is np.ndarray
    assert isinstance(large, np.memmap)
    assert not large.any()
    large[3] = 7.0
    assert large[3].tolist() == [7.0, 7.0]


def test_a_disk_that_is_full_is_named(ask_always, monkeypatch):
    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory, "available", lambda: 0)
    monkeypatch.setattr(memory.tempfile, "TemporaryFile", full)
    with pytest.raises(CannotWrite, match=r"80 bytes cannot be written to .* \(No space left on device\); free some"):
        memory.room((10, 2))


def test_a_disk_that_is_full_is_noticed_before_anything_is_written(ask_always, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(memory, "available", lambda: 0)
    monkeypatch.setattr(memory.os, "posix_fallocate", full, raising=False)  # some systems have none
    with pytest.raises(CannotWrite, match="80 bytes cannot be written"):
        memory.room((10, 2))


def test_a_map_for_which_there_is_no_memory_is_not_called_a_full_disk(ask_always, monkeypatch):
    def full(*_, **__):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(memory, "available", lambda: 0)
    monkeypatch.setattr(np, "memmap", full)
    with pytest.raises(NotEnoughMemory, match="not enough memory"), memory.memory_errors():
        memory.room((10, 2))


def test_a_model_trained_from_disk_is_the_one_trained_in_memory(ask_always, monkeypatch):
    views = make_blobs(50, 3, missing=0.3)[0]
    settings = {
        "config": Config(pretrain_epochs=2, joint_epochs=1, embedding_dim=16),
        "scaling": "standard",
        "n_init": 1,
        "random_state": 0,
    }
    usual = URRL(3, **settings).fit(views)
    monkeypatch.setattr(memory, "_SHARE", 2**60)  # the smallest table is too large for memory
    monkeypatch.setattr(memory, "_ROWS_AT_A_TIME", 7)
    from_disk = URRL(3, **settings).fit([view.astype(np.float64) for view in views])
    assert all(isinstance(array.base, np.memmap) for array in Views(views).arrays)
    assert np.abs(from_disk.embedding_ - usual.embedding_).max() < 1e-4
    assert (from_disk.labels_ == usual.labels_).all()


def test_views_are_taken_from_memory_maps_without_a_copy(tmp_path):
    np.save(tmp_path / "view.npy", np.ones((30, 4), dtype=np.float32))
    mapped = np.load(tmp_path / "view.npy", mmap_mode="r")
    assert np.shares_memory(Views([mapped]).arrays[0], mapped)


def test_means_of_columns_take_no_table_of_samples_by_samples():
    first, second = np.random.default_rng(0).normal(size=(2, 2_000, 3))
    second[::3] = np.nan
    tracemalloc.start()
    try:
        filled = filled_by_mean([first, second])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not np.isnan(filled[1]).any()
    assert peak < 2_000**2 * 4  # a table of float64 would be twice as large
