"""`viewfuse.compare` where things are not as they should be: folders of others, damaged runs, methods that fail."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator, ClusterMixin

import viewfuse
from viewfuse import CannotWrite, DataError, SettingError, Views
from viewfuse import methods as registry
from viewfuse.cli import main
from viewfuse.comparison import arguments
from viewfuse.comparison import run as runner
from viewfuse.comparison.arguments import RunFile
from viewfuse.comparison.results import Run
from viewfuse.errors import SuspiciousDataWarning
from viewfuse.fitted.manifest import digest
from viewfuse.utils.atomic import exclusive

N = 12


class Strange(ClusterMixin, BaseEstimator):
    """Does what `act` says; clusters are numbers in turn."""

    def __init__(self, n_clusters=3, act=None, table=None):
        self.n_clusters, self.act, self.table = n_clusters, act, table

    def fit(self, X, y=None):
        found = np.arange(len(X)) % self.n_clusters
        self.labels_ = self.act(found) if self.act else found
        return self


class NeedsMore(Strange):
    def __init__(self, needed):
        self.needed = needed


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.fixture
def views():
    return [np.random.default_rng(v).normal(size=(N, 2 + v)) for v in range(2)]


def compared(views, methods=None, **asked):
    return viewfuse.compare(views, methods or {"one": Strange()}, **{"n_clusters": 3, "seeds": 1, **asked})


def raising(error):
    def act(found):
        raise error

    return act


@pytest.mark.parametrize("there", ["table.csv", "plan.json", "runs/exp1/rate-0-seed-0.json"])
def test_a_folder_of_something_else_is_left_alone(views, tmp_path, there):
    file = tmp_path / "out" / there
    file.parent.mkdir(parents=True)
    file.write_text('{"precious": 1}')
    with pytest.raises(CannotWrite, match="holds something else than a comparison; give a new folder"):
        compared(views, out=tmp_path / "out")
    pd.DataFrame(views[0]).rename_axis("id").to_csv(tmp_path / "v.csv")
    args = ["compare", str(tmp_path / "v.csv"), "--clusters", "3", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(main, args)
    assert refused.exit_code == 2
    assert refused.stderr.endswith("holds something else than a comparison; give another --out\n")
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == [file]
    assert file.read_text() == '{"precious": 1}'


def test_a_comparison_that_was_killed_before_its_first_run_goes_on(views, tmp_path, monkeypatch):
    pd.DataFrame(views[0]).rename_axis("id").to_csv(tmp_path / "v.csv")
    args = ["compare", str(tmp_path / "v.csv"), "--clusters", "3", "--methods", "kmeans-mean", "--seeds", "1",
            "--out", str(tmp_path / "out")]  # fmt: skip
    whole = runner._done
    monkeypatch.setattr(runner, "_done", lambda *_: raising(KeyboardInterrupt())(None))
    stopped = CliRunner().invoke(main, args)
    assert stopped.exit_code == 130
    assert f"runs that were done are kept in {tmp_path / 'out'}, and the same command resumes" in stopped.stderr
    monkeypatch.setattr(runner, "_done", whole)
    assert CliRunner().invoke(main, args).exit_code == 0


def test_a_second_comparison_in_a_folder_is_refused_while_the_first_one_runs(views, tmp_path):
    with exclusive(tmp_path / "out"), pytest.raises(CannotWrite, match="is being written by another process"):
        compared(views, out=tmp_path / "out")


def test_data_of_the_same_bytes_and_another_shape_are_other_data():
    numbers = np.arange(24, dtype=np.float64)
    one, other = ([numbers[: 6 * w].reshape(6, w), numbers[6 * w :].reshape(6, 4 - w)] for w in (1, 2))
    assert digest(Views(one)) != digest(Views(other))
    sparse = [Views([csr_array(np.eye(6, width)), np.ones((6, 1))]) for width in (6, 500)]
    assert digest(sparse[0]) != digest(sparse[1])
    assert digest(Views(one)) == digest(Views([view.copy() for view in one]))


def test_parameters_that_print_alike_are_told_apart_and_equal_functions_are_not(views, tmp_path):
    table = np.zeros(5000)
    compared(views, {"one": Strange(table=table, act=lambda found: found)}, out=tmp_path / "out")
    compared(views, {"one": Strange(table=table.copy(), act=lambda found: found)}, out=tmp_path / "out")
    table[2500] = 1
    with pytest.raises(CannotWrite, match="table of one was"):
        compared(views, {"one": Strange(table=table, act=lambda found: found)}, out=tmp_path / "out")
    table[2500] = 0
    with pytest.raises(CannotWrite, match="act of one was"):
        compared(views, {"one": Strange(table=table, act=lambda found: found[::-1])}, out=tmp_path / "out")


def test_rates_that_print_alike_have_files_of_their_own(views, tmp_path):
    rates = (1 / 3, 0.333333, 0.5)
    compared(views, rates=rates, out=tmp_path / "out")
    names = {path.name for path in (tmp_path / "out/runs/one").iterdir()}
    assert names == {f"rate-{rate}-seed-0.json" for rate in ("0.3333333333333333", "0.333333", "0.5")}
    lines = []
    compared(views, rates=rates, out=tmp_path / "out", log=lines.append)
    assert lines[0] == "3 runs are there already, 0 are left to do"


@pytest.mark.parametrize(
    "damage",
    [
        {"labels": [0, 1]}, {"labels": [0.5] * N}, {"labels": [10**30] * N}, {"labels": [-1] * N}, {"labels": "abc"},
        {"evidence": "abc"}, {"seconds": [1]}, {"memory_mb": {}},
    ],
)  # fmt: skip
def test_a_damaged_run_is_done_again(views, tmp_path, damage):
    compared(views, out=tmp_path / "out")
    file = tmp_path / "out/runs/one/rate-0-seed-0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    assert compared(views, out=tmp_path / "out").runs[0].labels.tolist() == [i % 3 for i in range(N)]
    file.write_text("[" * 200_000)
    assert compared(views, out=tmp_path / "out").runs[0].failed == ""


def flipped(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)


def test_every_flipped_bit_of_a_run_is_noticed(tmp_path):
    file = RunFile(tmp_path, "one", 0.5, 0, "of these data", N)
    run = Run("one", 0.5, 0, np.arange(N) % 3, seconds=1.25, memory_mb=7.5)
    file.write(run)
    whole = file.path.read_bytes()
    assert file.read().labels.tolist() == run.labels.tolist()
    for bit in range(0, 8 * len(whole), 21):  # each of the eight of a byte in its turn
        flipped(file.path, bit)
        assert file.read() is None, bit
        file.path.write_bytes(whole)
    for size in range(0, len(whole), 11):
        file.path.write_bytes(whole[:size])
        assert file.read() is None, size


@pytest.mark.fault
def test_of_three_hundred_comparisons_with_a_flipped_bit_none_has_other_labels(views, tmp_path):
    expected = compared(views, out=tmp_path / "out").runs[0].labels.tolist()
    files = list((tmp_path / "out").rglob("*.json"))
    rng = np.random.default_rng(0)
    for _ in range(300):
        path = files[rng.integers(len(files))]
        whole = path.read_bytes()
        flipped(path, int(rng.integers(8 * len(whole))))
        if path.name == "plan.json":
            with pytest.raises(CannotWrite, match="give a new folder"):
                compared(views, out=tmp_path / "out")
        else:
            assert compared(views, out=tmp_path / "out").runs[0].labels.tolist() == expected
        path.write_bytes(whole)


def test_memory_that_cannot_be_measured_is_left_out(views, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "forget_peak", lambda: False)
    for _ in range(2):
        found = compared(views, seeds=2, out=tmp_path / "out")
        assert np.isnan(found.rows()[0]["memory_mb"])
        assert np.isnan(found.rows()[0]["memory_mb_sd"])
        assert found.rows()[0]["seconds"] >= 0


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda found: found * 10**11, "labels_ must be 12 integers from 0 to 11"),
        (lambda found: np.full(N, 2**64 - 1, dtype=np.uint64), "labels_ must be 12 integers"),
        (raising(ValueError("caf\udce9.txt")), "ValueError: caf?.txt"),
        (raising(Unspeakable()), "Unspeakable"),
        (raising(SystemExit(3)), "SystemExit: 3"),
    ],
)
def test_a_method_that_misbehaves_fails_alone(views, tmp_path, act, said):
    found = compared(views, {"bad": Strange(act=act), "good": Strange()}, out=tmp_path / "out")
    bad, good = found.rows()
    assert bad["failed"].startswith(said)
    assert good["failed"] == ""
    assert said in (tmp_path / "out/table.md").read_text()


def ends_its_process(found):
    os._exit(3)


def crashes(found):
    os.kill(os.getpid(), signal.SIGSEGV)


@pytest.mark.fault
@pytest.mark.parametrize("act", [ends_its_process, crashes])
def test_a_method_that_ends_its_process_fails_alone(views, act):
    methods = {"good": Strange(), "bad": Strange(act=act), "better": Strange()}
    found = compared(views, methods, seeds=2, n_jobs=2)
    assert [row["runs"] for row in found.rows()] == [2, 0, 2]
    assert found.rows()[1]["failed"].startswith("a worker process was lost 3 times")


def test_labels_are_matched_by_name(views):
    ids = [f"s{i}" for i in range(N)]
    named = [pd.DataFrame(view, index=ids) for view in views]
    truth = pd.Series([i % 3 for i in range(N)], index=ids)
    shuffled = truth.sample(frac=1, random_state=0)
    more = pd.concat([shuffled, pd.Series([7], index=["else"])])
    for labels in (truth, shuffled, dict(shuffled), truth.reset_index(drop=True), truth.tolist(), truth.iloc[:5]):
        assert compared(named, labels=labels).rows()[0]["acc"] == pytest.approx(100)
    with pytest.warns(SuspiciousDataWarning, match="1 labels of labels, such as that of 'else', are about no sample"):
        assert compared(named, labels=more).rows()[0]["acc"] == pytest.approx(100)
    lines = []
    some = {name: truth[name] for name in ids[:5]}
    assert compared(named, labels=some, log=lines.append).rows()[0]["acc"] == pytest.approx(100)
    assert "scores are of the 5 of 12 samples whose class is known" in lines
    for wrong in (truth.rename(lambda name: f"x{name}"), {"a": 1}):
        with pytest.raises(DataError, match=r"labels is about no sample"):
            compared(named, labels=wrong)
    with pytest.raises(DataError, match="labels names the id 's0' twice"):
        compared(named, labels=pd.concat([truth, truth.iloc[:1] + 1]))


def test_unknown_classes_of_pandas_are_unknown(views):
    labels = pd.array([0, 1, 2, None] * 3, dtype="Int64")
    assert sum(one is None for one in compared(views, labels=labels).known) == 3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rates": 0.5}, r"rates must be a list of numbers from 0 to 1, such as \[0.5\]; got 0.5"),
        ({"rates": "0.5"}, "rates must be a list of numbers"),
        ({"rates": None}, "rates must be a list of numbers"),
        ({"methods": 5}, "methods must be 'all', names of methods, or estimators by name; got 5"),
        ({"methods": [Strange()]}, "is unknown; choose from all, urrl"),
        ({"methods": {"a": Strange}}, "methods: 'a' must be an estimator, such as URRL"),
        ({"methods": {"a": None}}, "methods: 'a' must be an estimator"),
        ({"methods": {1: Strange()}}, "1 cannot name a folder"),
        ({"methods": ["all", "foo"]}, "method 'foo' is unknown"),
        ({"labels": 5}, "labels has 1 labels for 12 samples"),
        ({"seeds": 10_001}, "seeds must be at most 10,000"),
        ({"out": 5}, "out '5' cannot be a folder"),
        ({"out": "a\0b"}, "cannot be a folder"),
        ({"out": "x" * 300}, "cannot be a folder"),
    ],
)
def test_what_is_no_argument_is_refused(views, wrong, said):
    with pytest.raises((SettingError, DataError, CannotWrite), match=said):
        compared(views, **wrong)


def test_the_largest_number_of_seeds_is_taken():
    given = Views([np.eye(3)])
    assert arguments.checked(given, {"one": Strange()}, 2, (0,), None, 10_000, False, print).seeds == 10_000


def test_nothing_can_be_hidden_of_one_view(views):
    with pytest.raises(SettingError, match="there is one view, of which nothing can be hidden"):
        compared(views[:1], rates=(0, 0.5))
    assert compared(views[:1]).runs[0].failed == ""


def test_a_comparison_is_shown_in_one_line(views):
    assert repr(compared(views)) == "Comparison(methods=('one',))"


def test_methods_of_others_that_cannot_be_made_are_left_out_of_all(views, monkeypatch):
    names = {"needs": "test_compare_faults:NeedsMore", "gone": "nowhere:X", "../evil": "test_compare_faults:Strange",
             "fine": "test_compare_faults:Strange"}  # fmt: skip
    points = {name: EntryPoint(name, where, "viewfuse.methods") for name, where in names.items()}
    monkeypatch.setattr(registry, "_others", lambda: points)
    monkeypatch.setattr(registry, "ESTIMATORS", {})
    lines = []
    assert compared(views, "all", log=lines.append).methods == ("fine",)
    assert [line.partition(":")[0] for line in lines[:3]] == [f"{n} is left out" for n in ("needs", "gone", "../evil")]
    for name in ("needs", "gone", "../evil"):
        with pytest.raises(SettingError, match=f"{name!r}"):
            compared(views, [name])


def test_the_verb_says_that_nothing_is_ranked_and_what_rates_are(views, tmp_path):
    pd.DataFrame(views[1]).rename_axis("id").to_csv(tmp_path / "v.csv")
    args = ["compare", str(tmp_path / "v.csv"), "--clusters", "3", "--methods", "kmeans-mean", "kmeans-knn", "--seeds",
            "1", "--out", str(tmp_path / "out")]  # fmt: skip
    shown = CliRunner().invoke(main, args)
    assert "begins" not in shown.stderr  # quick ones are done as soon as that is said
    assert "nothing says which is better" in " ".join(shown.stdout.split())
    refused = CliRunner().invoke(main, [*args, "--rates", "0", "1.5"])
    assert refused.stderr == "viewfuse: --rates must be numbers from 0 to 1; got 1.5\n"


class Slow(Strange):
    def __init__(self, n_clusters=3, act=None, table=None, epochs=1):
        super().__init__(n_clusters, act, table)
        self.epochs = epochs


def test_runs_that_take_long_are_told_of_when_they_begin(views):
    lines = []
    compared(views, {"quick": Strange(), "slow": Slow()}, log=lines.append)
    assert [line.partition(": ")[0] for line in lines] == ["1 of 2", "slow, rate 0, seed 0 begins", "2 of 2"]


def test_a_run_with_many_clusters_is_kept_and_labels_of_something_else_are_not(tmp_path):
    kept = RunFile(tmp_path, "urrl", 0.25, 3, "mark", 5)
    kept.path.parent.mkdir(parents=True)
    for labels, is_read in [([0, 7, 99, 2**31 - 1, 1], True), ([0, 1, 2, 3, 2**31], False), ([0, 1, 2, 3, -1], False),
                            ([0, 1, 2, 3], False), ([0.0, 1.0, 2.0, 3.0, 4.0], False)]:  # fmt: skip
        kept.write(Run("urrl", 0.25, 3, np.array(labels), seconds=2.0))
        found = kept.read()
        assert (found is not None) is is_read
    kept.write(Run("urrl", 0.25, 3, np.arange(5), held_out=61.5, seconds=2.0))
    found = kept.read()
    assert (found.labels.tolist(), found.held_out, found.seconds) == ([0, 1, 2, 3, 4], 61.5, 2.0)
    assert np.isnan(found.memory_mb)
    assert RunFile(tmp_path, "urrl", 0.25, 3, "other mark", 5).read() is None


@pytest.mark.slow
def test_the_first_run_does_not_pay_for_what_is_loaded():
    """Else the method that is first would be a second slower, and larger by the size of the libraries."""
    code = """
import sys
import numpy as np
from viewfuse import Views
from viewfuse.comparison.run import _load_libraries
from viewfuse.methods import estimator_of
method, views = estimator_of("kmeans-mean")(n_clusters=2), Views({"a": np.arange(20.0).reshape(-1, 2)})
_load_libraries()
before = set(sys.modules)
method.fit(views)
print(len(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 50  # of torch and sympy there were 510
