"""The demo from end to end, on few rows and few epochs."""

from __future__ import annotations

import csv
from functools import partial

import numpy as np
import pytest

from benchmarks import demo
from viewfuse import URRL, Config
from viewfuse.datasets import load_handwritten


@pytest.mark.usefixtures("quick_map")
@pytest.mark.filterwarnings("ignore::viewfuse.EmptyClusterWarning")
def test_the_demo_writes_its_table_and_files(tmp_path, monkeypatch, capsys):
    views, digits = load_handwritten()
    monkeypatch.setattr(demo, "load_handwritten", lambda: ([view[::40] for view in views], digits[::40]))
    monkeypatch.setattr(
        demo,
        "URRL",
        partial(
            URRL,
            n_init=1,
            scaling="standard",
            config=Config(pretrain_epochs=2, joint_epochs=1, hidden_dim=8, embedding_dim=8),
        ),
    )
    demo.main(tmp_path / "out")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("accuracy", "NMI", "ARI", "seconds", "k-means after KNN imputation", "URRL"))
    with (tmp_path / "out" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "label", "confidence", "uncertain", "novelty", "outlier", "views_present"]
    assert [int(row["id"]) for row in rows] == list(range(50))
    assert {len(row["views_present"].split()) for row in rows} == {2, 6}
    assert all(0 < float(row["confidence"]) <= 1 for row in rows)
    with (tmp_path / "out" / "history.csv").open() as file:
        assert [row["stage"] for row in csv.DictReader(file)] == ["pre-training", "pre-training", "joint"]
    assert (tmp_path / "out" / "map.png").read_bytes()[:4] == b"\x89PNG"
    page = tmp_path / "out" / "report.html"
    assert shown.rstrip().endswith(f"Open this page in a browser: {page}")
    assert "whose digit is known" in page.read_text()
    assert np.isfinite([float(row["confidence"]) for row in rows]).all()
