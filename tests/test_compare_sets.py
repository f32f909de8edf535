"""Several data sets in one comparison: ranks, paired tests with correction, tables, the command."""

from __future__ import annotations

import json
from itertools import product

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from conftest import make_blobs
from viewfuse import DataError, SettingError
from viewfuse.cli import main
from viewfuse.comparison.ranks import holm, paired_tests, signed_ranks
from viewfuse.comparison.results import Comparison, Run
from viewfuse.comparison.sets import LabelledSet, SetsComparison, as_classes, compare_sets
from viewfuse.data.views import Views
from viewfuse.methods import KNNKMeans, MeanKMeans

# --- tests


def slow_ranks(values):
    """Mean ranks of the sizes, by counting."""
    sizes = np.abs(values)
    return [sum(sizes < one) + (sum(sizes == one) + 1) / 2 for one in sizes]


def slow_wilcoxon(differences):
    """Over all ways to give ranks signs: how often the sum of positive ranks is as far from its middle."""
    left = [one for one in differences if one]
    ranks = slow_ranks(np.array(left))
    own = sum(rank for rank, one in zip(ranks, left, strict=True) if one > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in product((0, 1), repeat=len(left))
    ]
    middle = sum(ranks) / 2
    return np.mean([abs(one - middle) >= abs(own - middle) - 1e-9 for one in sums])


@pytest.mark.parametrize("seed", range(6))
def test_p_values_are_those_of_all_signs(seed):
    rng = np.random.default_rng(seed)
    differences = rng.integers(-4, 6, size=3 + seed).astype(float)  # ties and zeros
    differences[0] = 2.0
    assert signed_ranks(differences)[1] == pytest.approx(slow_wilcoxon(differences))


def test_effects_and_extreme_cases():
    assert signed_ranks(np.zeros(4)) == (0.0, 1.0)
    assert signed_ranks(np.arange(1.0, 7.0)) == (1.0, 2 / 2**6)
    assert signed_ranks(-np.arange(1.0, 7.0)) == (-1.0, 2 / 2**6)
    assert signed_ranks(np.array([3.0, -1.0, -2.0]))[0] == 0
    assert signed_ranks(np.array([1.0, -1.0])) == (0.0, 1.0)
    assert signed_ranks(np.array([1.0, -1.0, 2.0, 3.0]))[0] == pytest.approx(
        (1.5 + 3 + 4 - 1.5) / 10
    )  # ties are halves


def test_holm_is_that_of_its_definition():
    assert holm([0.01, 0.04, 0.03, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_methods_are_tested_against_ones_own():
    scores = np.array([[90, 80, 90, np.nan], [70, 75, 60, 1], [50, 40, 40, 1]], dtype=float)
    one, two = paired_tests(["mine", "a", "b", "c"], scores, "mine")
    assert (one.method, one.difference, one.wins, one.ties, one.losses) == ("a", 5, 2, 0, 1)
    assert (two.method, two.wins, two.ties, two.losses) == ("b", 2, 1, 0)
    assert one.corrected >= one.p_value
    with pytest.raises(SettingError, match="'d' was not compared; choose from mine, a, b, c"):
        paired_tests(["mine", "a", "b", "c"], scores, "d")
    with pytest.raises(DataError, match="'c' failed on some data set"):
        paired_tests(["mine", "a", "b", "c"], scores, "c")


# --- sets


def write_sets(folder, count=3):
    """Data sets of unequal sizes and numbers of classes; one class of the first is not known."""
    for number in range(count):
        n, k = 30 + 10 * number, 2 + number % 2
        views, labels, _ = make_blobs(n, k, missing=0.0)
        labels = np.where(np.arange(n) < 4 - 4 * min(number, 1), -1, labels)
        np.savez(folder / f"s{number}.npz", view_0=views[0] + number, view_1=views[1] * 10, labels=labels)
    return [str(folder / f"s{number}.npz") for number in range(count)]


def test_one_command_compares_many_sets_and_resumes(tmp_path):
    files, out = write_sets(tmp_path), tmp_path / "out"
    args = ["compare", *files, "--methods", "kmeans-knn", "kmeans-mean", "--rates", "0", ".5", "--masks", "1", "--out",
            str(out), "--format", "svg"]  # fmt: skip
    shown = CliRunner().invoke(main, args, catch_exceptions=False)
    assert shown.exit_code == 0, shown.output
    assert "kmeans-knn against" in shown.stdout
    assert "with 3 data sets its p-value cannot be below 0.05; effect" in " ".join(shown.stdout.split())
    assert sorted(path.name for path in out.iterdir()) == [
        "ranks.svg", "sets", "table.csv", "table.md", "table.tex", "tests.csv",
    ]  # fmt: skip
    table = pd.read_csv(out / "table.csv")
    assert table.columns.tolist() == ["missing rate", "method", "s0", "s1", "s2", "mean rank"]
    assert len(table) == 4
    assert "- s0, missing rate 0.5: 50 % of samples complete" in (out / "table.md").read_text()
    again = CliRunner().invoke(main, [*args, "--latex"])
    assert "begins" not in again.stderr
    assert again.stderr.count("4 runs are there already, 0 are left to do") == 3
    assert again.stdout.count(r"\toprule") == 2
    parsed = json.loads(CliRunner().invoke(main, [*args, "--json"]).stdout)
    assert [one["method"] for one in parsed["tests"]] == ["kmeans-mean"]


def test_scores_of_a_set_are_those_of_its_own_comparison(tmp_path):
    sets = {}
    for name, k in (("a", 2), ("b", 3)):
        views, labels, _ = make_blobs(36, k, missing=0.0)
        sets[name] = LabelledSet(Views(views), labels.tolist())
    found = compare_sets(sets, {"knn": KNNKMeans(), "mean": MeanKMeans()}, own="mean", rates=(0.5,), seeds=2)
    for name, one in found.sets.items():
        rows = {row["method"]: row["acc"] for row in one.rows()}
        (line,) = [line for line in found.cells()[1] if line[1] == "knn"]
        assert line[2 + list(sets).index(name)].startswith(f"{rows['knn']:.1f} ±")
    assert [test.method for test in found.tests] == ["knn"]
    some = compare_sets(sets, {"knn": KNNKMeans(), "mean": MeanKMeans()}, n_clusters=4, rates=(0.5,), seeds=1)
    assert {len(set(run.labels.tolist())) for one in some.sets.values() for run in one.runs} == {4}
    with pytest.raises(DataError, match="two at least"):
        compare_sets({"a": sets["a"]}, {"knn": KNNKMeans()})


def runs_of(method, wrong):
    """Runs with so many of ten samples in the wrong class, by missing rate; None is a run that failed."""
    for rate, counts in wrong.items():
        for seed, count in enumerate(counts):
            labels = None if count is None else (np.arange(10) % 2) ^ (np.arange(10) < count)
            yield Run(method, rate, seed, labels, failed="" if count is not None else "no memory")


def made_sets(count):
    """The own method, another one that is better in the first set alone, and one of which a run failed."""
    known = np.array(["a", "b"] * 5, dtype=object)
    own, broken = {0.0: [0, 2], 0.5: [3]}, {0.0: [1, None], 0.5: [0]}
    found = {}
    for number in range(count):
        other = {0.0: [0, 0], 0.5: [1]} if number == 0 else {0.0: [2, 2], 0.5: [4]}
        runs = [*runs_of("own", own), *runs_of("other", other), *runs_of("broken", broken)]
        found[f"s{number}"] = Comparison(("own", "other", "broken"), tuple(runs), known)
    return found


def test_tables_of_sets_cell_by_cell():
    found = SetsComparison(made_sets(3), "own")
    header, rows = found.cells()
    assert header == ["missing rate", "method", "s0", "s1", "s2", "mean rank"]
    assert rows == [
        ["0", "own", *["90.0 ± 14.1"] * 3, "1.33"],
        ["0", "other", "100.0 ± 0.0", "80.0 ± 0.0", "80.0 ± 0.0", "1.67"],
        ["0", "broken", *["failed"] * 3, "-"],
        ["0.5", "own", *["70.0"] * 3, "1.33"],
        ["0.5", "other", "90.0", "60.0", "60.0", "1.67"],
        ["0.5", "broken", *["100.0"] * 3, "-"],
    ]
    means = 250 / 3 - np.array([290, 220, 220]) / 3
    ((name, difference, *counts, effect, p, corrected),) = found.test_cells()[1]
    assert (name, difference, counts) == ("other", f"{means.mean():+.1f}", ["2", "0", "1"])
    assert (float(effect), float(p), float(corrected)) == (0, 1, 1)  # the ranks 1.5, 1.5 against 3
    assert f"p = {found.ranks.p_value:.2g};" in found.note()
    assert f"less than {found.ranks.critical_difference:.2f} may" in found.note()
    some = SetsComparison(made_sets(3), "own", "nmi")
    one = some.sets["s1"]
    scores = [one.scores(run)["nmi"] for run in one.runs[:2]]
    assert some.cells()[1][0][3].startswith(f"{np.mean(scores):.1f} ± {np.std(scores, ddof=1):.1f}")


def test_p_values_of_both_kinds_stand_in_their_own_columns():
    sets = made_sets(4)
    for name, one in sets.items():
        more = runs_of("third", {0.0: [1, 2], 0.5: [int(name[1])]})
        sets[name] = Comparison((*one.methods, "third"), (*one.runs, *more), one.known)
    found = SetsComparison(sets, "own")
    assert any(test.p_value < test.corrected for test in found.tests)
    for test, cells in zip(found.tests, found.test_cells()[1], strict=True):
        assert cells[2:5] == [str(test.wins), str(test.ties), str(test.losses)]
        assert [float(cells[6]), float(cells[7])] == pytest.approx([test.p_value, test.corrected], rel=1e-2)


@pytest.mark.slow
def test_six_sets_are_the_fewest_that_can_tell():
    said = [f"with {n} data sets its p-value" in SetsComparison(made_sets(n), "own").note() for n in (5, 6)]
    assert said == [True, False]
    assert LabelledSet(None, ["0", 0, None, "b"]).n_classes == 2


def test_what_is_not_known_is_no_class():
    """MATLAB stores labels as floats."""
    assert as_classes(np.array([0, -1, 2])) == ["0", None, "2"]
    assert as_classes(np.array([0.0, -1.0, 2.0, np.nan])) == ["0.0", None, "2.0", None]
    assert as_classes(np.array(["b", "-1"])) == ["b", "-1"]


def test_no_clusters_are_refused_and_not_taken_for_none_given(tmp_path):
    asked = ["compare", *write_sets(tmp_path, 2), "--clusters", "0", "--methods", "kmeans-mean"]
    refused = CliRunner().invoke(main, [*asked, "--out", str(tmp_path / "o")])
    assert refused.exit_code == 2
    assert "--clusters must be an integer of at least 1; got 0" in refused.stderr


def test_what_is_printed_as_latex_is_latex(tmp_path):
    files = write_sets(tmp_path, 2)
    for asked in ([files[0], "--clusters", "2", "--rates", ".3"], files):
        out = tmp_path / f"out{len(asked)}"
        args = ["compare", *asked, "--methods", "kmeans-mean", "kmeans-knn", "--seeds", "2", "--out", str(out)]
        shown = CliRunner().invoke(main, [*args, "--latex"], catch_exceptions=False)
        assert f"written to {out}" in shown.stderr
        assert shown.stdout == (out / "table.tex").read_text()
        rest = shown.stdout.rpartition("\\end{tabular}")[2].strip().splitlines()
        assert rest
        assert all(line.startswith("% ") for line in rest)


def test_cells_of_a_rate_that_a_set_lacks_are_failed():
    sets = made_sets(2)
    one = sets["s1"]
    sets["s1"] = Comparison(one.methods, tuple(run for run in one.runs if run.missing_rate == 0), one.known)
    assert SetsComparison(sets, "own").cells()[1][3][2:4] == ["70.0", "failed"]


def test_files_without_labels_and_labels_beside_sets_are_refused(tmp_path):
    files = write_sets(tmp_path, 2)
    np.savez(tmp_path / "bare.npz", view_0=np.eye(9), view_1=np.eye(9))
    for asked, said in (
        ([*files, str(tmp_path / "bare.npz")], "bare.npz holds no labels; add them as 'labels', or name its views"),
        ([*files, "--labels", files[0]], "leave out --labels"),
        ([*files, "--batch", "plate"], "--batch is for one data set"),
        ([*files, files[0]], "two data sets are called 's0'"),
        ([*files, "--own", "urrl"], "--own must be one of the methods, kmeans-mean; got 'urrl'"),
        ([files[0], "--clusters", "3", "--own", "urrl"], "--own is for several data sets; leave it out"),
    ):
        refused = CliRunner().invoke(
            main, ["compare", *asked, "--methods", "kmeans-mean", "--out", str(tmp_path / "o")]
        )
        assert refused.exit_code == 2
        assert said in refused.stderr
        assert "data set s0" not in refused.stderr  # nothing has begun
