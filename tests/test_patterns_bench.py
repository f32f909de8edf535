"""Train once, predict under any mask: patterns, the classes of clusters, tables, the command."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import patterns
from benchmarks.command import main
from benchmarks.experiments.catalogue import DataSet, Loaded
from benchmarks.experiments.records import read_rows
from benchmarks.patterns import Placed, by_number, table_of, write_patterns
from conftest import make_blobs
from viewfuse import URRL, DataError
from viewfuse.methods.urrl.config import Epochs

TINY = DataSet("tcga_brca150", "Tiny", 60, (5, 8, 3), 3, 1, in_paper=False)


@pytest.fixture
def tiny(monkeypatch):
    views, labels, _ = make_blobs(60, 3, missing=0.0)

    def load(folder, entry):
        if entry.key != TINY.key:
            raise DataError(f"no {entry.key}")
        return Loaded(TINY, views, labels)

    monkeypatch.setattr("benchmarks.experiments.catalogue.load", load)
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(3, 0))
    return views, labels


def test_every_set_of_views_but_the_empty_one_is_a_pattern_once():
    found = {tuple(one.tolist()) for one in patterns.patterns(4)}
    assert len(found) == len(patterns.patterns(4)) == 2**4 - 1
    assert (False,) * 4 not in found


@pytest.mark.slow
def test_clear_clusters_are_placed_under_every_pattern(tiny, tmp_path):
    found = patterns.bench_patterns(tmp_path, device="cpu", seeds=1, data=["tcga_brca150"], log=len, effort="quick")
    assert len(found) == 2 * 3 * 7
    assert {one.gaps for one in found if one.trained_on == "complete"} == {
        "100 % of samples complete, 0 % of cells missing, 1 pattern"
    }
    for method in (patterns.OURS, patterns.KMEANS, patterns.CLASSIFIER):
        assert np.mean([one.acc for one in found if one.method == method and one.n_views > 1]) > 85
    table = write_patterns(tmp_path, found)
    assert read_rows(tmp_path / "patterns.csv", Placed) == found
    assert len(table.rows) == 6


def test_held_out_samples_teach_nothing(tiny, tmp_path):
    """Other classes and values of held-out samples, drawn as the bench draws them, change no prediction."""
    views, labels = tiny
    new = np.random.default_rng(0).permutation(60)[:12]
    other = [view.copy() for view in views]
    for view in other:
        view[new] = view[new][::-1]
    spoiled = labels.copy()
    spoiled[new] = np.roll(labels[new], 1)
    seen = []
    for data, known in ((views, labels), (other, spoiled)):
        ours = URRL(3, random_state=0, device="cpu", effort="quick")
        list(patterns.placed(Loaded(TINY, data, known), "complete", 0, ours))
        seen.append(ours.cluster_centers_)
    assert np.array_equal(*seen)


def placed(pattern, acc, seed=0, method="a"):
    return Placed("tcga_brca150", "half", "gaps", seed, method, pattern, acc)


def test_tables_have_means_over_patterns_and_then_over_seeds():
    found = [placed("10", 50.0), placed("01", 70.0), placed("11", 90.0)]
    found += [placed(one.pattern, one.acc + 10, seed=1) for one in found]
    assert by_number(found, 1).value == 65
    assert by_number(found, 1).sd == pytest.approx(7.0710678)
    assert by_number(found, 3) is None
    (row,) = table_of(found).rows
    assert row == ("TCGA-BRCA", "half", "gaps", "a", "65.00 ± 7.07", "95.00 ± 7.07", "55.00 (10)", "2")


def test_the_command_writes_tables_and_a_picture(tmp_path, monkeypatch):
    found = [placed(one, 50.0 + i, method=name) for i, one in enumerate(("10", "01", "11")) for name in "abc"]
    monkeypatch.setattr(patterns, "bench_patterns", lambda *_, **__: found)
    asked = ["patterns", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--seeds", "1"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "patterns.csv", "patterns.md", "patterns.png",
    ]  # fmt: skip
    assert "worst pattern" in result.output


def test_the_thin_command_says_what_is_wrong(tmp_path, capsys):
    assert patterns.main(["--data-dir", str(tmp_path), "--out", str(tmp_path / "o"), "--data", "bdgp"]) == 2
    assert "holds none of bdgp" in capsys.readouterr().err
