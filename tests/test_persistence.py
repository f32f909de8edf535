"""Saved models come back to the bit, and nothing damaged comes back at all."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_blobs
from flat import flat
from viewfuse import URRL, BadModelFile, CannotWrite, Views, load
from viewfuse.fitted import manifest as manifest_module
from viewfuse.fitted import persistence
from viewfuse.fitted.manifest import FORMAT, MANIFEST
from viewfuse.selection.confidence import Calibration
from viewfuse.utils.atomic import TEMPORARY, exclusive, write_file, writing

SMALL = {"embedding_dim": 8, "hidden_dim": 8, "pretrain_epochs": 1, "joint_epochs": 1, "scaling": "standard"}


@pytest.fixture(scope="module")
def views():
    return dict(zip("abc", make_blobs(40, 3)[0], strict=True))


@pytest.fixture(scope="module")
def model(views):
    return URRL(3, **flat(**SMALL, donor_depth=6), random_state=0).fit(views)


@pytest.fixture(scope="module")
def other(views):
    """A model of two clusters."""
    return URRL(2, **flat(**SMALL), random_state=1).fit(views)


@pytest.fixture
def saved(model, tmp_path):
    model.save(tmp_path / "model")
    return tmp_path / "model"


def tensors_of(folder: Path) -> Path:
    (path,) = folder.glob("tensors-*.safetensors")
    return path


def test_a_model_comes_back_to_the_bit(model, views, saved):
    loaded = URRL.load(saved)
    assert loaded.get_params() == model.get_params()
    assert loaded.history_ == model.history_
    assert loaded.view_names_ == ["a", "b", "c"]
    for name in ("labels_", "embedding_", "soft_labels_", "cluster_centers_"):
        assert np.array_equal(getattr(loaded, name), getattr(model, name))
    new = {"b": np.nan_to_num(views["b"]) + 0.3}
    for method in ("predict", "predict_proba", "transform"):
        assert np.array_equal(getattr(loaded, method)(new), getattr(model, method)(new))
    assert np.array_equal(loaded.impute(Views(views)).arrays[1], model.impute(Views(views)).arrays[1])
    assert np.array_equal(loaded.predict(views), model.labels_)
    loaded.set_params(random_state=1).fit(views)


def test_one_table_with_column_names(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(make_blobs(30, 2, widths=(3,), missing=0.0)[0][0], columns=list("xyz"))
    fitted = URRL(2, **flat(**SMALL), random_state=np.random.default_rng(0)).fit(frame)
    fitted.save(tmp_path)
    loaded = URRL.load(tmp_path)
    assert np.array_equal(loaded.predict(frame), fitted.labels_)
    assert list(loaded.feature_names_in_) == list("xyz")
    assert loaded.random_state is None  # a generator's state is not kept
    assert np.array_equal(loaded.predict(frame[["z", "y", "x"]]), fitted.labels_)  # matched by name
    with pytest.raises(ValueError, match=r"lacks 1 of the 3 columns that the model was fitted on, .*: 'x'"):
        loaded.predict(frame[["z", "y"]])


def test_saving_again_replaces_the_model_and_sweeps(other, saved):
    before = tensors_of(saved)
    (saved / ".viewfuse-tmp-left-by-a-kill").write_bytes(b"half")
    other.save(saved)
    assert URRL.load(saved).n_clusters == 2
    assert not before.exists()
    assert sorted(path.name for path in saved.iterdir()) == [MANIFEST, tensors_of(saved).name]


def test_nothing_of_others_is_overwritten(model, tmp_path):
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(CannotWrite, match="is no viewfuse model; choose a new or empty folder"):
        model.save(tmp_path)
    with pytest.raises(CannotWrite, match=r"thesis.doc is a file, so nothing can be written into it"):
        model.save(tmp_path / "thesis.doc")
    assert (tmp_path / "thesis.doc").read_text() == "years of work"


STRANGERS = (
    '{"name": "an extension", "manifest_version": 3}',
    '{"format": 1, "versions": 3, "views": [], "settings": {}, "files": {}, "checksum": ""}',
    "[]",
    "not even JSON",
)


@pytest.mark.parametrize("content", STRANGERS)
def test_a_manifest_of_another_program_is_left_alone(model, tmp_path, content):
    (tmp_path / MANIFEST).write_text(content)
    with pytest.raises(CannotWrite, match="is no viewfuse model; choose a new or empty folder"):
        model.save(tmp_path)
    assert (tmp_path / MANIFEST).read_text() == content
    assert len(list(tmp_path.iterdir())) == 1


def test_a_manifest_with_the_least_that_ours_have_is_ours(model, tmp_path):
    least = {"format": 1, "versions": {"viewfuse": "0.1"}, "views": [], "files": {}, "checksum": ""}
    (tmp_path / MANIFEST).write_text(json.dumps(least))
    model.save(tmp_path)
    assert (load(tmp_path).labels_ == model.labels_).all()


def test_tensors_of_the_user_beside_a_model_are_left_alone(model, saved):
    (saved / "tensors-mine.safetensors").write_bytes(b"mine")
    model.save(saved)
    assert (saved / "tensors-mine.safetensors").read_bytes() == b"mine"


def test_a_folder_of_tensors_of_the_user_is_no_half_saved_model(model, tmp_path):
    (tmp_path / "tensors-mine.safetensors").write_bytes(b"mine")
    with pytest.raises(CannotWrite, match="is no viewfuse model"):
        model.save(tmp_path)


def test_a_reader_between_two_writes_reads_again(other, saved, monkeypatch):
    plain, moments = persistence.read_manifest, []

    def read_then_replaced(folder):
        manifest = plain(folder)
        if not moments:
            moments.append("replaced")
            other.save(saved)
        return manifest

    monkeypatch.setattr(persistence, "read_manifest", read_then_replaced)
    assert URRL.load(saved).n_clusters == 2
    assert moments


def test_unfinished_files_of_a_live_writer_are_left_alone(model, saved):
    with writing(saved / "other") as unfinished:
        unfinished.write_bytes(b"half")
        model.save(saved)
        assert unfinished.read_bytes() == b"half"


@pytest.mark.skipif(os.name != "posix", reason="needs process numbers")
def test_unfinished_files_of_another_machine_are_left_alone_for_a_day(saved, model):
    strange = saved / f"{TEMPORARY}{'0' * 8}-1-{'0' * 16}"
    strange.write_bytes(b"half")
    model.save(saved)
    assert strange.exists()
    os.utime(strange, (1, 1))
    model.save(saved)
    assert not strange.exists()


def test_without_locks_young_tensors_of_other_writers_are_left_alone(model, saved, monkeypatch):
    monkeypatch.setattr("viewfuse.utils.atomic.fcntl", None)
    young, old = (saved / f"tensors-{digit * 16}.safetensors" for digit in "ab")
    for path in (young, old):
        path.write_bytes(b"")
    os.utime(old, (1, 1))
    model.save(saved)
    assert young.exists()
    assert not old.exists()


@pytest.mark.skipif(os.name != "posix", reason="needs locks")
def test_a_folder_that_stays_locked_is_said(model, saved, monkeypatch):
    monkeypatch.setattr("viewfuse.utils.atomic._PATIENCE", 0.0)
    with exclusive(saved), pytest.raises(CannotWrite, match="is being written by another process; try again later"):
        model.save(saved)


RACER = """
import sys, time
from viewfuse import URRL
first, target, starts, times = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
model = URRL.load(first)
time.sleep(max(0, starts - time.time()))
for _ in range(times):
    model.save(target)
    URRL.load(target)
"""


def race(tmp_path, views, times):
    """Two processes save their own models into one folder and read what is there; returns what is there at last."""
    for seed in (0, 1):
        URRL(3, **flat(**SMALL), random_state=seed).fit(views).save(tmp_path / f"m{seed}")
    target, starts = tmp_path / "target", str(time.time() + 6)
    commands = [[sys.executable, "-c", RACER, str(tmp_path / f"m{s}"), str(target), starts, str(times)] for s in (0, 1)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    racers = [subprocess.Popen(one, env=environment, stderr=subprocess.PIPE, text=True) for one in commands]
    for racer in racers:
        assert racer.wait() == 0, racer.stderr.read()
        racer.stderr.close()
    found = URRL.load(target).embedding_
    assert any(np.array_equal(found, URRL.load(tmp_path / f"m{s}").embedding_) for s in (0, 1))
    return sorted(path.name for path in target.iterdir())


def test_two_writers_leave_one_whole_model(tmp_path, model, other):
    """Threads exclude each other as processes do."""
    target = tmp_path / "target"

    def write(mine):
        for _ in range(4):
            mine.save(target)
            URRL.load(target)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, (model, other)))
    assert URRL.load(target).n_clusters in (2, 3)
    assert len(list(target.iterdir())) == 2


@pytest.mark.fault
def test_five_hundred_races_leave_one_whole_model(tmp_path, views):
    assert len(race(tmp_path, views, 500)) == 2


def test_a_folder_called_like_an_unfinished_file_is_left_alone(model, saved):
    (saved / ".viewfuse-tmp-folder").mkdir()
    model.save(saved)
    assert (saved / ".viewfuse-tmp-folder").is_dir()


@pytest.mark.parametrize(
    "changes",
    [{"method": {"name": ["urrl"], "config": {}}}, {"method": None}, {"views": 3}, {"versions": []},
     {"method": {"name": "urrl"}}],
)  # fmt: skip
def test_a_manifest_that_does_not_say_what_the_model_is(saved, changes):
    manifest = {**json.loads((saved / MANIFEST).read_text()), **changes}
    manifest["checksum"] = manifest_module.checksum({k: v for k, v in manifest.items() if k != "checksum"})
    (saved / MANIFEST).write_text(json.dumps(manifest))
    for read in (load, URRL.load, persistence.check):
        with pytest.raises(BadModelFile, match="does not say what the model is"):
            read(saved)


def test_a_model_of_an_unknown_method_is_refused(saved):
    manifest = json.loads((saved / MANIFEST).read_text())
    manifest["method"]["name"] = "of-tomorrow"
    manifest["checksum"] = manifest_module.checksum({k: v for k, v in manifest.items() if k != "checksum"})
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BadModelFile, match="its method 'of-tomorrow' is unknown to this viewfuse"):
        load(saved)


def test_a_model_of_any_method_is_loaded_where_it_is_wanted(model, views, saved):
    again = load(saved, device="cpu")
    assert isinstance(again, URRL)
    assert again.device == "cpu"
    assert "device" not in json.loads((saved / MANIFEST).read_text())["facts"]["params"]
    assert np.array_equal(again.predict(views), model.labels_)


def test_decisions_of_format_1_have_the_names_of_today():
    old = {"verdict": {"chosen": "stable"}, "joint_stage": {"evidence": {"consistency_after_epoch": {"1": 0.5}}}}
    found = manifest_module._upgraded({"settings": {}, "facts": {"decisions": old}})["facts"]["decisions"]
    assert found["reliability"] == {"chosen": "stable"}
    assert found["joint_stage"]["evidence"] == {"neighbor_agreement_after_epoch": {"1": 0.5}}


def test_an_unfitted_model_cannot_be_saved(tmp_path):
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        URRL().save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_missing_cut_mixed_and_newer_models_are_refused(other, saved, tmp_path):
    with pytest.raises(BadModelFile, match=r"holds no manifest\.json, so it is not a viewfuse model"):
        URRL.load(tmp_path)
    path, content = tensors_of(saved), tensors_of(saved).read_bytes()
    path.write_bytes(content[:-7])
    with pytest.raises(BadModelFile, match=f"{path.name} has .* bytes instead of"):
        URRL.load(saved)
    other.save(tmp_path / "other")
    path.write_bytes(tensors_of(tmp_path / "other").read_bytes())
    with pytest.raises(BadModelFile, match=path.name):
        URRL.load(saved)
    path.unlink()
    with pytest.raises(BadModelFile, match=f"{path.name} cannot be read"):
        URRL.load(saved)
    manifest = json.loads((saved / MANIFEST).read_text())
    (saved / MANIFEST).write_text(json.dumps({**manifest, "format": FORMAT + 1}))
    with pytest.raises(BadModelFile, match=f"format {FORMAT + 1}, but this viewfuse reads format {FORMAT}"):
        URRL.load(saved)
    (saved / MANIFEST).write_text("[]")
    with pytest.raises(BadModelFile, match=r"manifest.json is damaged"):
        URRL.load(saved)


def test_an_edited_manifest_is_refused(saved):
    text = (saved / MANIFEST).read_text()
    edited = text.replace('"n_neighbors": 4', '"n_neighbors": 3')
    assert edited != text
    (saved / MANIFEST).write_text(edited)
    with pytest.raises(BadModelFile, match="checksum does not match"):
        URRL.load(saved)


@pytest.mark.parametrize("place", [0.3, 0.6, 1.0])
def test_a_flipped_bit_of_the_tensors_is_refused_whatever_it_changes(saved, place):
    path = tensors_of(saved)
    content = bytearray(path.read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(BadModelFile, match=rf"{path.name} is damaged \(its checksum does not match\)"):
        URRL.load(saved)


def flip_and_load(folder, views, labels, rng) -> bool:
    """Flip one bit somewhere: is the model refused by name, or exactly the old one?"""
    path = sorted(folder.iterdir())[int(rng.integers(2))]
    kept = path.read_bytes()
    content = bytearray(kept)
    content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(bytes(content))
    try:
        return np.array_equal(URRL.load(folder).predict(views), labels)
    except BadModelFile as error:
        return path.name in str(error) or "tensors-" in str(error)
    finally:
        path.write_bytes(kept)


def test_a_short_manifest_takes_little_memory(saved):
    """Python takes memory for as many bytes as are asked for: a gigabyte, where a process may have two."""
    tracemalloc.start()
    try:
        content = manifest_module.read_file(saved / MANIFEST, manifest_module.LONGEST_MANIFEST)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(content) + 2**20
    finally:
        tracemalloc.stop()
    assert content == (saved / MANIFEST).read_bytes()
    with pytest.raises(ValueError, match="too long"):
        manifest_module.read_file(saved / MANIFEST, len(content) - 1)


def test_flipped_bits(model, views, saved):
    rng = np.random.default_rng(0)
    assert all(flip_and_load(saved, views, model.labels_, rng) for _ in range(60))


@pytest.mark.fault
def test_a_thousand_flipped_bits(model, views, saved):
    rng = np.random.default_rng(1)
    assert all(flip_and_load(saved, views, model.labels_, rng) for _ in range(1000))


def kill_while_saving(tmp_path, models, times):
    """Kill a process that saves two models in turn; count how often one of the two was whole, and the files left."""
    target = tmp_path / "target"
    models[0].save(target)
    draw, whole = random.Random(0), 0
    for _ in range(times):
        child = os.fork()  # a new process would take seconds to import what is needed
        if not child:
            save_for_ever(models, target)
        time.sleep(draw.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL  # it was still at it
        found = URRL.load(target).embedding_
        whole += any(np.array_equal(found, model.embedding_) for model in models)
    models[0].save(target)
    return whole, len(os.listdir(target))


def save_for_ever(models, target):
    """What the child does until it is killed; whatever happens, it does not come back as a second pytest."""
    try:
        while True:
            for model in models:
                model.save(target)
    finally:
        os._exit(1)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_kills_while_saving(tmp_path, model, other):
    assert kill_while_saving(tmp_path, [model, other], 3) == (3, 2)  # what the kills left behind is swept


@pytest.mark.fault
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_two_hundred_kills_while_saving(tmp_path, model, other):
    assert kill_while_saving(tmp_path, [model, other], 200) == (200, 2)


def test_a_full_disk_keeps_the_old_model(model, other, views, saved, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CannotWrite, match=r"tensors-.* bytes\) cannot be written: No space left on device"):
        other.save(saved)
    monkeypatch.undo()
    assert np.array_equal(URRL.load(saved).predict(views), model.labels_)
    assert len(list(saved.iterdir())) == 2


def test_a_fixture_of_format_1_can_be_read_for_ever():
    loaded = URRL.load(Path(__file__).parent / "golden" / "format-1")
    expected = np.load(Path(__file__).parent / "golden" / "format-1-expected.npz")
    found = loaded.predict_proba({"a": expected["a"], "b": expected["b"]})
    assert found == pytest.approx(expected["chances"], abs=1e-4)


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_files_have_the_permissions_of_any_other(tmp_path):
    (tmp_path / "plain").touch()
    write_file(tmp_path / "ours", b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("nth", [0, 1], ids=["tensors", "manifest"])
def test_a_save_that_fails_anywhere_leaves_the_old_model(model, saved, monkeypatch, nth):
    def fails(path, content):
        if next(calls) == nth:
            raise CannotWrite("the disk is full")
        write_file(path, content)

    calls, other = count(), copy.deepcopy(model)
    other.embedding_ = other.embedding_ + 1
    monkeypatch.setattr(persistence, "write_file", fails)
    with pytest.raises(CannotWrite, match="the disk is full"):
        other.save(saved)
    assert np.array_equal(URRL.load(saved).embedding_, model.embedding_)
    other.save(saved)
    assert np.array_equal(URRL.load(saved).embedding_, other.embedding_)


@pytest.mark.parametrize(("farthest", "is_there"), [(-2, False), (-1, True), (1, True), (2, False)])
def test_neighbours_that_do_not_exist_are_refused(farthest, is_there):
    tensors = {"present": torch.ones(2, 1, dtype=torch.bool), "stored.0": torch.ones(2, 3)}
    tensors["shift.0"] = tensors["factor.0"] = torch.ones(3, dtype=torch.float64)
    outcome = nullcontext() if is_there else pytest.raises(ValueError, match="not among the samples")
    with outcome:
        persistence._check_tensors(tensors, torch.tensor([[[1]], [[farthest]]]), [3], 2)


def with_part(model, **parts):
    """The same model with other parts, as if they had been saved like this."""
    other = copy.copy(model)
    other._model = replace(model._model, **parts)
    return other


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"labels": 0}, None),
        ({"labels": 2}, None),
        ({"labels": -1}, "the clusters of the training samples are not those of the model"),
        ({"labels": 3}, "the clusters of the training samples are not those of the model"),
        ({"labels": torch.zeros(39, dtype=torch.int32)}, r"calibration\.labels is .* instead of "),
        ({"labels": torch.zeros(40, dtype=torch.int64)}, r"calibration\.labels is .* instead of "),
        ({"again": np.array([0.5, np.nan, 1.0])}, r"calibration\.again is not finite"),
        ({"shifts": np.array([0.5, -np.inf, 1.0])}, r"calibration\.shifts is not finite"),
        ({"again": np.ones(2)}, r"calibration\.again is .* instead of "),
        ({"shifts": np.ones(4)}, r"calibration\.shifts is .* instead of "),
    ],
)
def test_a_calibration_of_other_clusters_is_refused(model, tmp_path, change, said):
    """One sample of cluster -1 or 3 of three, say; saved whole, so that no checksum tells."""
    parts = {"labels": torch.arange(40, dtype=torch.int32) % 3, "again": np.array([0.9, 0.5, 0.1]),
             "shifts": np.array([0.0, -2.0, 1.5])}  # fmt: skip
    if isinstance(change.get("labels"), int):
        change = {"labels": torch.where(torch.arange(40) == 39, change["labels"], parts["labels"]).int()}
    with_part(model, calibration=Calibration(**(parts | change))).save(tmp_path / "model")
    if said is None:
        found = load(tmp_path / "model")._model.calibration
        assert found.labels.tolist() == (parts | change)["labels"].tolist()
        assert (found.again.tolist(), found.shifts.tolist()) == ([0.9, 0.5, 0.1], [0.0, -2.0, 1.5])
    else:
        with pytest.raises(BadModelFile, match=said):
            load(tmp_path / "model")


@pytest.mark.parametrize(("sharpness", "is_one"), [(1e-9, True), (40.0, True), (0.0, False), (-1.0, False)])
def test_a_sharpness_is_above_zero(model, tmp_path, sharpness, is_one):
    with_part(model, sharpness=sharpness).save(tmp_path / "model")
    outcome = nullcontext() if is_one else pytest.raises(BadModelFile, match=f"sharpness is {sharpness}")
    with outcome:
        assert load(tmp_path / "model")._model.sharpness == sharpness


@pytest.mark.parametrize("name", ["present", "stored.0", "shift.0", "factor.0", "unseen", "left_out"])
@pytest.mark.parametrize("wrong", ["kind", "shape"])
def test_tensors_of_another_kind_or_shape_are_refused(name, wrong):
    tensors = {"present": torch.ones(2, 1, dtype=torch.bool), "stored.0": torch.ones(2, 3)}
    tensors |= {part: torch.ones(3, dtype=torch.float64) for part in ("shift.0", "factor.0")}
    tensors["unseen"] = tensors["left_out"] = torch.ones(2, 1, dtype=torch.float64)
    neighbors = torch.tensor([[[1]], [[0]]])
    persistence._check_tensors(tensors, neighbors, [3], 2)
    for other in (neighbors[..., 0], neighbors[..., None]):
        with pytest.raises(ValueError, match="neighbor_ids is"):
            persistence._check_tensors(tensors, other, [3], 2)
    good = tensors[name]
    tensors[name] = good.half() if wrong == "kind" else torch.cat([good, good])
    with pytest.raises(ValueError, match=rf"^{name} is .* instead of "):
        persistence._check_tensors(tensors, neighbors, [3], 2)


@pytest.mark.skipif(os.name != "posix", reason="needs files that are replaced while they are read")
def test_whoever_reads_a_file_that_is_replaced_reads_the_old_one(tmp_path):
    write_file(tmp_path / "file", b"old")
    with (tmp_path / "file").open("rb") as reader:
        write_file(tmp_path / "file", b"new")
        assert reader.read() == b"old"
    assert (tmp_path / "file").read_bytes() == b"new"
