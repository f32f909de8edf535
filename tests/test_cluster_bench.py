"""The comparison of criteria for the number of clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from sklearn.datasets import make_blobs

from benchmarks.clusters.criteria import OTHERS, other_choices, partitions
from benchmarks.clusters.experiment import Cell, NumberChoice, choices_of, masked, read_choices, write_choices
from benchmarks.clusters.summary import is_clear, summary, write_summary
from benchmarks.clusters.synthetic_sets import all_sets
from benchmarks.command import main
from viewfuse.methods.urrl.config import Config

KS = [2, 3, 4, 5, 6]


def test_all_criteria_find_three_blobs():
    points = torch.from_numpy(make_blobs(150, 4, centers=np.eye(3, 4) * 20, random_state=0)[0]).float()
    draws = torch.Generator().manual_seed(0)
    assert other_choices(points, partitions(points, KS, draws), KS, draws) == dict.fromkeys(OTHERS, 3)


def test_the_gap_statistic_can_say_one():
    points = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(0)
    assert other_choices(points, partitions(points, KS, draws), KS, draws)["gap"] == 1


@pytest.fixture(scope="module")
def chosen():
    own = next(one for one in all_sets() if one.name == "blobs-3")
    views, labels = own.make(0.25, 1)
    cell = Cell(own.name, 0.25, 0, masked([view[:40] for view in views], 0.25, 1, 0), labels[:40])
    small = Config(n_clusters=1, hidden_dim=8, embedding_dim=16, pretrain_epochs=2)
    return choices_of(cell, small, torch.device("cpu"))


def test_every_criterion_chooses_on_the_same_embedding(chosen, tmp_path):
    chosen_by_others = ["silhouette", "Calinski-Harabasz", "BIC", "gap"]
    assert [one.criterion for one in chosen] == ["viewfuse", *chosen_by_others]
    assert len({one.ari_at_true_k for one in chosen}) == 1
    write_choices(tmp_path / "clusters.csv", chosen)
    assert [one.chosen for one in read_choices(tmp_path / "clusters.csv")] == [one.chosen for one in chosen]


def test_synthetic_sets_have_the_clusters_that_they_say():
    for own in all_sets():
        views, labels = own.make(0.5, 1)
        assert len(np.unique(labels)) == own.k
        assert {len(view) for view in views} == {len(labels)}
        assert np.bincount(labels).min() >= 10
    assert len({own.name for own in all_sets()}) == len(all_sets()) == 20


def test_the_tables_count_what_was_found(tmp_path):
    found = [
        NumberChoice("handwritten", 0.5, 0, 10, "viewfuse", 10, "10 12", 0.9, 0.9),
        NumberChoice("handwritten", 0.5, 1, 10, "viewfuse", 5, "5 10", 0.5, 0.9),
        NumberChoice("handwritten", 0.5, 0, 10, "gap", 9, "", 0.8, 0.9),
        NumberChoice("gauss-1", 0.0, 0, 1, "viewfuse", 2, "2", 0.0, 1.0),
        NumberChoice("blobs-3", 0.0, 0, 3, "gap", 3, "", 1.0, 1.0),
    ]
    real, clear, synthetic, without, listed = write_summary(tmp_path, found)
    assert real.rows == clear.rows
    assert real.rows[0] == ("viewfuse", "50%", "50%", "100%", "0.50", "-0.200")
    assert real.rows[1] == ("gap", "0%", "100%", "0%", "0.15", "-0.100")
    assert (synthetic.rows[0][0], without.rows[0][1]) == ("gap", "0%")
    assert listed.rows == (("Handwritten", "0.5", "10", "10 5", "9"),)
    assert "within one" in (tmp_path / "clusters.md").read_text()
    assert not is_clear(NumberChoice("3sources", 0.5, 0, 6, "gap", 3, "", 1.0, 1.0))
    assert len(summary(found[:1])) == 3


def test_an_unknown_set_is_refused_in_one_line(tmp_path):
    call = ["clusters", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--data", "nothing"]
    said = CliRunner().invoke(main, call)
    assert (said.exit_code, said.output.count("\n")) == (2, 1)
    said = CliRunner().invoke(main, [*call[:-1], "bdgp", "--masks", "1", "--rate", "0"])
    assert said.output.splitlines()[-1] == f"viewfuse: {tmp_path} holds none of bdgp"
