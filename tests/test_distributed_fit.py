"""fit-large as a whole: from shards to labels, whatever the shards are called, and however often it is interrupted."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sharded_data import QUICK, N, quick_fit, rows, write_shards, written
from viewfuse import URRL, load
from viewfuse.cli import main
from viewfuse.distributed import fit_large, training
from viewfuse.distributed.shards import Shards
from viewfuse.errors import CannotWrite, CheckpointDiffers, DataError, MissingPackage, SettingError
from viewfuse.metrics import clustering_accuracy


@pytest.fixture(scope="module")
def table():
    return rows()[0]


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory):
    """A run that nothing interrupted: its shards, its folder and its summary."""
    folder = tmp_path_factory.mktemp("whole")
    data = write_shards(folder / "rows", table, 2)
    return data, folder / "run", quick_fit(data, folder / "run")


def test_a_run_is_whole(whole, table):
    data, run, summary = whole
    assert sorted(path.name for path in run.iterdir()) == ["columns.csv", "labels", "model", "summary.json"]
    found, known = written(run), rows()[1]
    assert [pq.read_metadata(run / "labels" / path.name).num_rows for path in Shards(data).paths] == Shards(data).counts
    order = np.argsort(table.column("id").to_pylist())
    assert found.column("id").to_pylist() == table.column("id").take(order).to_pylist()
    assert clustering_accuracy(known[order], np.asarray(found.column("label"))) > 0.9
    assert summary == {**json.loads((run / "summary.json").read_text()), "seconds": summary["seconds"]}
    assert sum(summary["cluster_sizes"]) == summary["rows"] == N
    assert len(found.column("embedding")[0]) == 8


def test_the_model_is_an_ordinary_one_that_learned_from_all_rows(whole):
    data, run, _ = whole
    model, shards = load(run / "model", device="cpu"), Shards(data)
    parts = [part for path in shards.paths for part in shards.read(path)]
    ids = np.array([name for part in parts for name in part.ids.to_pylist()])
    values = np.concatenate([part.values for part in parts])
    order = np.argsort(ids)
    chances = model.predict_proba(shards.layout.views(values[order]))
    assert np.array_equal(chances.argmax(axis=1), np.asarray(written(run).column("label")))
    assert np.array_equal(chances.max(axis=1), np.asarray(written(run).column("confidence")))
    assert model.history_["stage"] == ["pre-training", "joint"] + ["all rows"] * 2
    assert model.history_["epoch"] == list(range(1, 5))
    assert set(model.ids_) <= set(ids)


def test_shards_leave_no_trace_in_the_labels(whole, table, tmp_path):
    quick_fit(write_shards(tmp_path / "rows", table, 7, "z"), tmp_path / "run", embedding=False)
    assert written(tmp_path / "run").equals(written(whole[1]).drop_columns("embedding"))
    assert (tmp_path / "run" / "columns.csv").read_bytes() == (whole[1] / "columns.csv").read_bytes()
    models = [next((run / "model").glob("*.safetensors")) for run in (tmp_path / "run", whole[1])]
    assert models[0].read_bytes() == models[1].read_bytes()


STOPS = {
    "after reading": (fit_large._Job, "_start", 1, KeyboardInterrupt),
    "after the fit of the bank": (training.PreparedRows, "prepare", 1, KeyboardInterrupt),
    "in the first epoch": (training.SharedStep, "checksum", 1, SettingError),
    "after a checkpoint": (training.SharedStep, "checksum", 2, KeyboardInterrupt),
    "before the model is saved": (fit_large, "_save", 1, KeyboardInterrupt),
    "in the labels": (fit_large.LabelFiles, "_table", 2, DataError),
    "after the labels": (fit_large, "as_json", 1, KeyboardInterrupt),
}
"""Where a run is interrupted, in this order, each time in the call of that number; or refused for the moment."""


@pytest.fixture(scope="module")
def stopped(whole, tmp_path_factory):
    """The folder of a run that was interrupted again and again, as it was at each moment."""
    folder = tmp_path_factory.mktemp("stopped")
    for moment, (place, name, number, error) in STOPS.items():
        work, calls = getattr(place, name), []

        def stop(*args, work=work, calls=calls, number=number, error=error, **options):
            calls.append(1)
            if len(calls) == number:
                raise error("not now")
            return work(*args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, name, stop)
            with pytest.raises(error, match="not now"):
                quick_fit(whole[0], folder / "run")
        shutil.copytree(folder / "run", folder / moment)
    return folder


@pytest.mark.parametrize(
    ("moment", "damaged"),
    [
        ("after reading", "checkpoint/rows/*.rows"),
        ("after reading", "checkpoint/rows/*.keys"),
        ("after reading", "checkpoint/rows/ids-0.json"),
        ("in the first epoch", "checkpoint/prepared/*.npy"),
        ("before the model is saved", "checkpoint/rows/done.json"),
        ("after the labels", "labels/*.parquet"),
    ],
)
def test_files_of_an_interrupted_run_that_were_damaged_change_no_label(whole, stopped, tmp_path, moment, damaged):
    """Done again where that is possible, or refused with the cure."""
    shutil.copytree(stopped / moment, tmp_path / "run")
    path = sorted((tmp_path / "run").glob(damaged))[0]
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    if damaged.endswith(("done.json", "parquet")):
        quick_fit(whole[0], tmp_path / "run")
        assert written(tmp_path / "run").equals(written(whole[1]))
    else:
        with pytest.raises(CheckpointDiffers, match=r"is damaged.*delete .*checkpoint to begin anew"):
            quick_fit(whole[0], tmp_path / "run")


def test_a_run_that_is_interrupted_again_and_again_ends_with_the_same_labels(whole, stopped):
    """And no refusal costs what was trained before it."""
    start = "checkpoint/start/manifest.json"
    times = {(stopped / moment / start).stat().st_mtime_ns for moment in list(STOPS)[1:]}
    assert times == {(stopped / "run" / start).stat().st_mtime_ns}
    with pytest.raises(CheckpointDiffers, match="steps was 3, is 5"):
        quick_fit(whole[0], stopped / "run", steps=5)
    quick_fit(whole[0], stopped / "run")
    assert written(stopped / "run").equals(written(whole[1]))


def test_finished_results_are_neither_made_again_nor_overwritten_in_silence(whole, tmp_path, capsys):
    data, run, summary = whole
    (run / "checkpoint").mkdir()  # as a kill may leave it
    assert quick_fit(data, run, verbose=True) == json.loads(json.dumps(summary))
    assert not (run / "checkpoint").exists()
    told = f"{run} is finished already, by the same call; nothing is done again\n"
    assert capsys.readouterr().err == f"comparing {N} rows with those of {run}\n{told}"
    (tmp_path / "mine.txt").touch()
    with pytest.raises(CannotWrite, match="exists already; give another --out, or --force"):
        quick_fit(data, tmp_path)
    with pytest.raises(CannotWrite, match=r"mine\.txt is a file; give a folder as --out"):
        quick_fit(data, tmp_path / "mine.txt", force=True)


def test_results_of_another_fit_are_kept_and_what_differs_is_told(whole):
    data, run, _ = whole
    before = (run / "summary.json").read_bytes()
    differs = "has the results of another fit: steps was 3, is 5; give what was given then, another --out, or --force"
    with pytest.raises(CannotWrite, match=differs):
        quick_fit(data, run, steps=5)
    assert (run / "summary.json").read_bytes() == before


@pytest.mark.parametrize(("name", "given", "least"), [("bank", 2, 20), ("bank", 19, 20), ("steps", 0, 1)])
def test_too_small_a_bank_and_no_steps_are_refused(whole, tmp_path, name, given, least):
    with pytest.raises(SettingError, match=f"{name} must be 'auto' or an integer of at least {least}; got {given}"):
        quick_fit(whole[0], tmp_path / "run", **{name: given})
    assert not (tmp_path / "run").exists()


def test_a_refused_run_keeps_nothing_that_would_refuse_the_cure(whole, tmp_path):
    with pytest.raises(ValueError, match="200"):
        fit_large.fit_large(whole[0], tmp_path / "run", 200, **QUICK)  # the bank has fewer rows
    assert list((tmp_path / "run").iterdir()) == []


def test_a_folder_of_somebody_else_is_no_checkpoint(whole, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "mine.pt").touch()
    with pytest.raises(CannotWrite, match="exists already"):
        quick_fit(whole[0], tmp_path)
    assert (tmp_path / "checkpoint" / "mine.pt").exists()


@pytest.mark.parametrize("where", ["", "x", "x/y", "../link/x"])
def test_results_are_not_put_among_the_shards(table, tmp_path, where):
    data = write_shards(tmp_path / "rows", table, 2)
    (tmp_path / "link").symlink_to(data)
    with pytest.raises(CannotWrite, match="its labels would be read next time; give an --out elsewhere"):
        quick_fit(data, data / where)
    said = CliRunner().invoke(main, ["fit-large", str(data), "--out", str(data / where), "--force"])
    assert (said.exit_code, len(said.output.splitlines())) == (2, 1)
    assert "give an --out elsewhere" in said.output
    assert len(list(data.iterdir())) == 2


def test_results_do_not_replace_what_is_read(table, tmp_path):
    """As the labels of a run are Parquet files, too."""
    (tmp_path / "run").mkdir()
    data = write_shards(tmp_path / "run" / "labels", table, 2)
    with pytest.raises(CannotWrite, match=r"holds .*, which is read"):
        quick_fit(sorted(data.iterdir()), tmp_path / "run", force=True)
    assert len(list(data.iterdir())) == 2


def test_force_overwrites_the_results_and_leaves_what_else_is_there(whole, tmp_path, monkeypatch):
    (tmp_path / "labels").mkdir()
    (tmp_path / "notes.txt").touch()
    monkeypatch.setattr(fit_large._Job, "_run", lambda *_: {})
    with pytest.raises(CannotWrite, match="exists already"):
        quick_fit(whole[0], tmp_path)
    quick_fit(whole[0], tmp_path, force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint", "notes.txt"}


def test_a_run_that_the_disk_stopped_goes_on(whole, tmp_path, monkeypatch):
    def full(*_):
        raise CannotWrite("no space")

    monkeypatch.setattr(fit_large._Job, "_start", full)
    with pytest.raises(CannotWrite):
        quick_fit(whole[0], tmp_path / "run")
    assert (tmp_path / "run" / "checkpoint" / "rows").is_dir()


def test_a_restart_does_not_clear_what_was_done(whole, monkeypatch):
    data, run, summary = whole
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert quick_fit(data, run, force=True)["seconds"] == summary["seconds"]


def invoke(*words):
    return CliRunner().invoke(main, ["fit-large", *map(str, words)])


def test_the_verb_says_what_it_wrote_and_what_is_wrong(whole, tmp_path, monkeypatch):
    fit = fit_large.fit_large
    monkeypatch.setattr(fit_large, "fit_large", lambda **given: fit(**given, config=QUICK["config"]))
    small = ["--clusters", "3", "--bank", "40", "--steps", "1", "--batch-size", "64", "--scaling", "standard"]
    done = invoke(whole[0], *small, "--device", "cpu", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "cluster_sizes" in done.output
    assert re.search(r"seconds +reading [\d.]+, fit of the bank [\d.]+, neighbours", done.output)
    assert (tmp_path / "run" / "labels" / "part0.parquet").exists()
    failed = invoke(tmp_path / "nothing", "--out", tmp_path / "other")
    assert failed.exit_code == 2
    assert failed.output.count("\n") == 1
    assert "nothing does not exist; check the path" in failed.output
    assert invoke(whole[0], "--bank", "no", "--out", tmp_path / "other").output == (
        "viewfuse: --bank must be 'auto' or an integer of at least 20; got 'no'\n"
    )


def test_the_verb_names_its_option_for_the_columns_of_views(tmp_path):
    pq.write_table(pa.table({"id": ["a", "b"], "x": [1.0, 2.0]}), tmp_path / "wide.parquet")
    failed = invoke(tmp_path / "wide.parquet", "--out", tmp_path / "run")
    assert failed.exit_code == 2
    assert "call them VIEW.COLUMN, or name those of each view: --block VIEW=PATTERN" in failed.output


def test_without_pyarrow_a_line_says_what_to_install(whole, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match="needs the package pyarrow"):
        Shards(whole[0])


@pytest.mark.parametrize("name", ["model", "labels", "checkpoint"])
def test_force_leaves_alone_what_no_run_wrote(whole, tmp_path, name):
    precious = tmp_path / "run" / name / "precious.txt"
    precious.parent.mkdir(parents=True)
    precious.write_text("weeks of work")
    with pytest.raises(CannotWrite, match=f"{name} is of no fit-large; move it"):
        quick_fit(whole[0], tmp_path / "run", force=True)
    assert precious.read_text() == "weeks of work"


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(3))
def test_handwritten_with_noise_is_clustered_as_well_as_a_sample_in_memory(shared_data, tmp_path, seed):
    """A sample as large as the bank: what a user without this would do."""
    known, rng = np.load(shared_data / "handwritten.npz"), np.random.default_rng(seed)
    place = rng.integers(2000, size=12_000)
    views = {name: known[name][place].astype(np.float32) for name in known if name.startswith("view")}
    for view in views.values():
        view += 0.3 * view.std(axis=0) * rng.standard_normal(view.shape, dtype=np.float32)
        view[rng.random(len(view)) < 0.3] = np.nan
    views["view_0"][np.isnan(np.concatenate(list(views.values()), axis=1)).all(axis=1)] = 0.0
    lists = {name: [None if np.isnan(row[0]) else row for row in view] for name, view in views.items()}
    data = write_shards(tmp_path / "rows", pa.table({"id": range(12_000), **lists}), 4)
    fit_large.fit_large(data, tmp_path / "run", 10, bank=2_000, steps=60, batch_size=1_024, random_state=seed)
    truth = known["labels"][place]
    large = clustering_accuracy(truth, np.asarray(written(tmp_path / "run").column("label")))
    sample = URRL(10, random_state=seed).fit({name: view[:2_000] for name, view in views.items()})
    memory = clustering_accuracy(truth[:2_000], sample.labels_)
    print(f"seed {seed}: {100 * large:.2f} of all rows, {100 * memory:.2f} of a sample in memory")
    assert large > memory - 0.01
