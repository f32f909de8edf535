"""Faults that need a real process or a real disk: full and read-only folders, Ctrl-C twice, damaged shards, order."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from sklearn.base import clone

from conftest import make_blobs
from flat import flat
from sharded_data import rows, write_shards, written
from viewfuse import URRL

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]
SMALL = ["--clusters", "3", "--device", "cpu", "--random-state", "0"]
QUICK = [*SMALL, "--pretrain-epochs", "1", "--joint-epochs", "1", "--scaling", "standard"]
QUICK += ["--hidden-dim", "8", "--embedding-dim", "4"]
PROGRAM = """
import sys
from sharded_data import QUICK
from viewfuse.cli import main
from viewfuse.distributed import fit_large
whole = fit_large.fit_large
fit_large.fit_large = lambda **given: whole(**{**given, **QUICK, "steps": 10**6 if given["steps"] == 10**6 else 6})
main(sys.argv[1:])
"""
"""The command line, whose fit-large trains tiny networks."""


ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}


def viewfuse(*words: object, plain: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the command line; `plain`, as somebody whom permissions hold back, which root is not."""
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    if plain and os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=ENVIRONMENT)


def lines(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """What was said, but for progress."""
    return [line for line in ended.stderr.splitlines() if line.startswith("viewfuse: ") and "warning" not in line]


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Files of two views, a run on them, and shards with the labels of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("given")
    views, _, _ = make_blobs(60, 3, widths=(4, 3), missing=0.0)
    for name, view in zip("ab", views, strict=True):
        pd.DataFrame(view, index=[f"s{i}" for i in range(60)]).to_csv(folder / f"{name}.csv", index_label="id")
    assert viewfuse("fit", folder / "a.csv", folder / "b.csv", *QUICK, "--out", folder / "run").returncode == 0
    write_shards(folder / "shards", rows()[0], 4)
    ended = viewfuse("fit-large", folder / "shards", *SMALL, "--out", folder / "large")
    assert ended.returncode == 0, ended.stderr
    return folder


def commands(given: Path, out: Path) -> dict[str, list[object]]:
    """Every verb that writes, with what it is to write into `out`."""
    files, model = [given / "a.csv", given / "b.csv"], given / "run" / "model"
    return {
        "fit": ["fit", *files, *QUICK, "--out", out / "fit"],
        "fit-large": ["fit-large", given / "shards", *SMALL, "--out", out / "large"],
        "predict": ["predict", model, *files, "--out", out / "labels.csv"],
        "embed": ["embed", model, *files, "--out", out / "embedding.npy"],
        "impute": ["impute", model, files[0], "--out", out / "filled"],
        "explain": ["explain", model, *files, "--out", out / "why"],
        "choose": ["choose", *files, "--device", "cpu", "--out", out / "choice"],
        "compare": ["compare", *files, "--clusters", "3", "--methods", "kmeans-mean", "--out", out / "compared"],
        "report": ["report", given / "run", "--out", out / "page.html"],
    }


@pytest.fixture
def plain_user():
    """Skips where root cannot be held back."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root may write everywhere, and there is no setpriv to take that away")


@pytest.mark.usefixtures("plain_user")
def test_a_read_only_folder_is_one_line_of_every_verb(given, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "labels.csv").write_text("mine")
    out.chmod(0o555)
    try:
        for verb, words in commands(given, out).items():
            ended = viewfuse(*words, *(["--force"] if verb == "predict" else []), plain=True)
            assert (ended.returncode, len(lines(ended))) == (2, 1), (verb, ended.stderr)
            assert str(out) in lines(ended)[0], verb
            assert "Permission denied" in lines(ended)[0], verb
            assert "Traceback" not in ended.stderr, verb
    finally:
        out.chmod(0o755)
    assert [path.name for path in out.iterdir()] == ["labels.csv"]
    assert (out / "labels.csv").read_text() == "mine"


@pytest.mark.usefixtures("plain_user")
def test_read_only_data_and_models_can_be_read(given, tmp_path):
    places = [given / "shards", given / "run", given / "run" / "model", given]
    modes = [place.stat().st_mode for place in places]
    for place in places:
        place.chmod(0o555)
    try:
        for verb, words in commands(given, tmp_path).items():
            ended = viewfuse(*words, plain=True)
            assert ended.returncode == 0, (verb, ended.stderr)
    finally:
        for place, mode in zip(places, modes, strict=True):
            place.chmod(mode)
    assert (tmp_path / "large" / "labels").is_dir()


@pytest.fixture
def disk(tmp_path):
    """A disk of 64 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small disk cannot be mounted; root can")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(disk: Path, left: int) -> Path:
    """Take all of a disk but so many bytes; removing the file gives them back."""
    ballast = disk / "ballast"
    free = shutil.disk_usage(disk).free
    ballast.write_bytes(bytes(max(0, free - left)))
    return ballast


def test_a_full_disk_is_one_line_of_every_verb_and_keeps_what_was_there(given, disk):
    (disk / "out").mkdir()
    (disk / "out" / "labels.csv").write_text("mine")
    ballast = fill(disk, 0)
    for verb, words in commands(given, disk / "out").items():
        ended = viewfuse(*words, *(["--force"] if verb == "predict" else []))
        assert (ended.returncode, len(lines(ended))) == (2, 1), (verb, ended.stderr)
        assert str(disk / "out") in lines(ended)[0], verb
        assert "No space left on device" in lines(ended)[0], verb
        assert "Traceback" not in ended.stderr, verb
    assert [path.name for path in (disk / "out").rglob("*") if path.is_file()] == ["labels.csv"]
    assert (disk / "out" / "labels.csv").read_text() == "mine"
    ballast.unlink()
    for verb, words in commands(given, disk / "out").items():
        ended = viewfuse(*words, *(["--force"] if verb == "predict" else []))
        assert ended.returncode == 0, (verb, ended.stderr)


def test_a_disk_that_fills_up_during_fit_large_is_one_line_and_the_same_command_goes_on(given, disk):
    expected = written(given / "large")
    rooms = (8_192, 65_536, 262_144, 2_097_152)
    stopped = {left: stops_at(given, disk, left, expected) for left in rooms}
    assert stopped[8_192] == "checkpoint", stopped  # it needs the most room: what fits it fits labels and model, too
    assert stopped[2_097_152] == "", stopped


def stops_at(given, disk, left, expected):
    """The part of the run that a disk with so many bytes left stops; empty where they are enough."""
    out, part = disk / f"run{left}", ""
    command = ["fit-large", given / "shards", *SMALL, "--out", out]
    ballast = fill(disk, left)
    ended = viewfuse(*command)
    if ended.returncode != 0:
        assert (ended.returncode, len(lines(ended))) == (2, 1), (left, ended.stderr)
        assert str(out) in lines(ended)[0]
        assert "No space left on device" in lines(ended)[0]
        assert "Traceback" not in ended.stderr
        assert not (out / "summary.json").exists()
        part = next(part for part in Path(lines(ended)[0].split()[1]).parts[len(out.parts) :])
    ballast.unlink()
    ended = viewfuse(*command)
    assert ended.returncode == 0, ended.stderr
    assert written(out).equals(expected), left
    shutil.rmtree(out)
    return part


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "text", "gone"])
def test_a_damaged_shard_of_fit_large_is_named(given, tmp_path, damage):
    data = tmp_path / "shards"
    shutil.copytree(given / "shards", data)
    shard = data / "part2.parquet"
    whole = shard.read_bytes()
    flipped = bytearray(whole)
    for place in range(40, len(whole) // 2, 7):
        flipped[place] ^= 0xFF
    content = {"cut": whole[: len(whole) // 2], "flipped": bytes(flipped), "emptied": b"", "text": b"id,x\na,1\n"}
    command = ["fit-large", data / "*.parquet", *SMALL, "--out", tmp_path / "run"]
    if damage == "gone":
        shard.unlink()
        shard.symlink_to(tmp_path / "nowhere")
    else:
        shard.write_bytes(content[damage])
    ended = viewfuse(*command)
    assert (ended.returncode, len(lines(ended))) == (2, 1), ended.stderr
    assert "part2.parquet" in lines(ended)[0]
    assert "Traceback" not in ended.stderr
    shard.unlink()
    shard.write_bytes(whole)
    ended = viewfuse(*command)
    assert ended.returncode == 0, ended.stderr
    assert written(tmp_path / "run").equals(written(given / "large"))


@contextmanager
def training(given, out, verb):
    """A process that trains for long, and hears Ctrl-C."""
    long = ["--pretrain-epochs", 10**5, "--joint-epochs", 1, "--scaling", "standard", "--hidden-dim", 8]
    words = ["fit", given / "a.csv", given / "b.csv", *SMALL, *long, "--out", out]
    if verb == "fit-large":
        words = ["fit-large", given / "shards", *SMALL, "--steps", 10**6, "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        ends = time.monotonic() + 120
        while not (out / "checkpoint" / ("prepared" if verb == "fit-large" else "fit.json")).exists():
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < ends
            time.sleep(0.05)
        time.sleep(2)
        yield process
    finally:
        process.kill()
        process.wait()


def of_children() -> float:
    """Seconds of computing of all processes that were waited for."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def said(process: subprocess.Popen[str], within: float) -> list[str]:
    """The lines of a process that ends in time, but for those of its stages; on a busy machine computing counts."""
    ticks = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    before, began = of_children() + sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), time.monotonic()
    text = process.communicate(timeout=60)[1]
    assert min(time.monotonic() - began, of_children() - before) < within
    assert "Traceback" not in text
    return [line for line in text.splitlines() if line.startswith("viewfuse: ")]


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("verb", ["fit", "fit-large"])
def test_ctrl_c_twice_ends_it_within_two_seconds(given, tmp_path, verb, wait):
    with training(given, tmp_path / "run", verb) as process:
        process.send_signal(signal.SIGINT)
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        lines = said(process, 2.0)
    assert process.returncode in (130, -signal.SIGINT)  # which a shell calls 130 as well
    assert len(lines) <= 1
    assert all("interrupted; " in line for line in lines)


@pytest.mark.parametrize("verb", ["fit", "fit-large"])
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_while_training_is_one_line_that_says_how_to_go_on(given, tmp_path, verb, number, code, word):
    with training(given, tmp_path / "run", verb) as process:
        process.send_signal(number)
        lines = said(process, 30.0)
    how = f"to resume, give the same files and options and --resume {tmp_path / 'run'}"
    how = how if verb == "fit" else "the same command resumes from here"
    assert lines == [f"viewfuse: {word}; {how}"]
    assert process.returncode == code


@pytest.fixture(scope="module", params=[-0.5, -2.0, -10.0])
def fitted(request):
    """A model with a soft mask, and its samples, some of which have one view only."""
    views, _, mask = make_blobs(90, 3, widths=(4, 5, 3), missing=0.6)
    named = {"abc"[v]: np.where(mask[:, [v]], view, np.nan) for v, view in enumerate(views)}
    sizes = {"hidden_dim": 16, "embedding_dim": 8, "pretrain_epochs": 8, "joint_epochs": 2, "scaling": "standard"}
    return URRL(3, **flat(**sizes, imputed_bias=request.param), device="cpu", random_state=0).fit(named), named


def test_a_model_places_its_training_samples_where_training_left_them(fitted):
    """No drift of the mask between training and use, whoever comes along."""
    model, named = fitted
    scale = np.abs(model.embedding_).max()
    assert np.abs(model.transform(named) - model.embedding_).max() <= 1e-6 * scale
    for size in (1, 64):
        parts = [{name: view[i : i + size] for name, view in named.items()} for i in range(0, 90, size)]
        found = np.concatenate([model.transform(part) for part in parts])
        assert np.abs(found - model.embedding_).max() <= 1e-6 * scale


def test_order_changes_nothing(fitted):
    model, named = fitted
    scale, order = np.abs(model.embedding_).max(), np.random.default_rng(1).permutation(90)
    shuffled = model.transform({name: named[name][order] for name in reversed(named)})
    assert np.abs(shuffled - model.embedding_[order]).max() <= 1e-6 * scale
    frames = {name: pd.DataFrame(view, columns=[f"c{i}" for i in range(view.shape[1])]) for name, view in named.items()}
    again = clone(model).set_params(config__pretrain_epochs=1).fit(frames)
    turned = {name: frame[frame.columns[::-1]] for name, frame in frames.items()}
    assert np.abs(again.transform(turned) - again.embedding_).max() <= 1e-6 * np.abs(again.embedding_).max()


def test_a_run_that_was_stopped_by_a_full_disk_twice_still_goes_on(given, disk):
    """Also where the first run left its checkpoint half written."""
    command = ["fit-large", given / "shards", *SMALL, "--out", disk / "run"]
    for left in (65_536, 16_384, 262_144):
        ballast = fill(disk, left)
        viewfuse(*command)
        ballast.unlink()
    ended = viewfuse(*command)
    assert ended.returncode == 0, ended.stderr
    assert written(disk / "run").equals(written(given / "large"))
    assert sorted(pq.read_metadata(path).num_rows for path in (disk / "run" / "labels").iterdir()) == sorted(
        pq.read_metadata(path).num_rows for path in (given / "shards").iterdir()
    )
