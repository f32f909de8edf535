"""Names of clusters: stored with the model, and shown wherever its numbers are."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner

from conftest import make_blobs
from viewfuse import URRL, Config, load
from viewfuse.cli import main, runs
from viewfuse.data.views import Views
from viewfuse.distributed.sharded_predict import predict_parts
from viewfuse.errors import BadModelFile, SettingError
from viewfuse.fitted.manifest import checksum
from viewfuse.io.writers import Sheet, as_json, write_labels, write_sheets
from viewfuse.report.run_folder import read_run
from viewfuse.serve.inference import explain, predict
from viewfuse.serve.limits import Limits

QUICK = {"config": Config(embedding_dim=8, hidden_dim=16, pretrain_epochs=2, joint_epochs=1, learning_rate=2e-3)}
QUICK |= {"scaling": "standard", "random_state": 0}
NAMES = {2: "B cells, <new>", 0: "=T()"}
"""Out of order; one would be a tag, the other a formula. Cluster 1 has no name."""


@pytest.fixture(scope="module")
def fitted():
    views = Views(make_blobs(44, 3, missing=0.3)[0])
    return views, URRL(3, **QUICK).fit(views)


@pytest.fixture
def named(fitted, tmp_path):
    fitted[1].save(tmp_path / "unnamed")
    return fitted[0], load(tmp_path / "unnamed").rename(NAMES)


@pytest.fixture
def run(fitted, tmp_path):
    views, model = fitted
    model.save(tmp_path / "run" / "model", keep=30)
    write_labels(tmp_path / "run" / "labels.csv", views, model.judge())
    facts = {"views": list(views.names), "cluster_sizes": np.bincount(model.labels_).tolist(), "params": {}}
    (tmp_path / "run" / "summary.json").write_bytes(as_json({**facts, "decisions": model.decisions_}).encode())
    spots = [(name, float(i % 7), float(i % 5)) for i, name in enumerate(views.ids.tolist())][::2]
    write_sheets(tmp_path / "run", {"map.csv": Sheet(("id", "x", "y"), spots)})
    return tmp_path / "run"


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_names_are_added_one_by_one_saved_and_lent(named, tmp_path):
    views, model = named
    assert model.rename({1: " rest "}).cluster_names_ == {0: "=T()", 1: "rest", 2: "B cells, <new>"}
    assert model.rename({1: "others"}).cluster_names_[1] == "others"
    model.save(tmp_path / "named")
    assert load(tmp_path / "named").cluster_names_ == model.cluster_names_
    assert URRL(3, **QUICK).fit(views, like=model).cluster_names_ == model.cluster_names_
    assert model.fit(views).cluster_names_ == {}


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ({3: "x"}, "there is no cluster 3 to be named; those of the model are 0 to 2"),
        ({-1: "x"}, "there is no cluster -1"),
        ({"1": "x"}, "there is no cluster '1'"),
        ({True: "x"}, "there is no cluster True"),
        ({1: " "}, "cluster 1 cannot be called ' '"),
        ({1: None}, "cluster 1 cannot be called None"),
        (["a", "b", "c"], "names are a list; give a dict of them by number, such as {0: 'a'}"),
        ({1: "=T()"}, "clusters 0 and 1 cannot both be called '=T()'"),
    ],
)
def test_what_cannot_be_a_name_is_refused_and_changes_nothing(named, names, why):
    with pytest.raises(SettingError) as error:
        named[1].rename(names)
    assert str(error.value).startswith(why)
    assert named[1].cluster_names_ == NAMES


def test_names_may_change_places(named):
    assert named[1].rename({0: NAMES[2], 2: NAMES[0]}).cluster_names_ == {0: NAMES[2], 2: NAMES[0]}


def test_a_forged_name_is_refused(named, tmp_path):
    named[1].save(tmp_path / "model")
    path = tmp_path / "model" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    manifest["facts"]["cluster_names"] = [[7, "x"]]
    path.write_text(json.dumps({**manifest, "checksum": checksum(manifest)}))
    with pytest.raises(BadModelFile, match="no cluster 7"):
        load(tmp_path / "model")


def test_predictions_and_answers_have_names(named, tmp_path):
    views, model = named
    predict_parts(model, [views[:20], views[20:]], tmp_path / "new.csv", 0.1)
    rows = rows_of(tmp_path / "new.csv")
    shown = {"0": "'=T()", "1": "", "2": "B cells, <new>"}
    assert [row["name"] for row in rows] == [shown[row["label"]] for row in rows]
    assert list(rows[0])[:3] == ["id", "label", "name"]
    for answer in (predict(model, views, Limits()), explain(model, views, Limits())):
        assert answer["names"] == [NAMES.get(label) for label in answer["labels"]]


def test_pictures_have_names(named, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("viewfuse.plots.layout.plane", lambda points: points[:, :2].T)
    model = named[1]
    legend = [text.get_text().rpartition(" (n=")[0] for text in model.plot_map().get_legend().get_texts()]
    assert legend == ["=T()", "1", "B cells, <new>"]
    assert [text.get_text() for text in model.plot_clusters().get_xticklabels()] == legend
    assert "<td>B cells, &lt;new&gt;</td>" in model._repr_mimebundle_()["text/html"]


@pytest.mark.usefixtures("quick_map")
def test_the_command_line_names_the_clusters_of_a_run(run, tmp_path, monkeypatch):
    before = rows_of(run / "labels.csv")
    write_sheets(tmp_path, {"names.csv": Sheet(("label", "name"), [*NAMES.items()])})
    for _ in range(2):  # the second time there are names already
        made = CliRunner().invoke(main, ["rename", str(run), str(tmp_path / "names.csv")])
        assert made.exit_code == 0, made.output
    rows = rows_of(run / "labels.csv")
    shown = {"0": "'=T()", "1": "", "2": "B cells, <new>"}
    assert [row.pop("name") for row in rows] == [shown[row["label"]] for row in rows]
    assert rows == before
    assert load(run / "model").cluster_names_ == NAMES
    page = (run / "report.html").read_text()
    assert "Cluster 2 (B cells, &lt;new&gt;)" in page
    assert "<new>" not in page
    assert (run / "map.png").read_bytes().startswith(b"\x89PNG")
    assert "former names" not in made.output
    assert read_run(run).called(1) == "1"

    def fail(*_):
        raise RuntimeError("no\npicture")

    monkeypatch.setattr(runs, "draw_run", fail)
    (tmp_path / "names.csv").write_text("label,name\n1,others\n")
    made = CliRunner().invoke(main, ["rename", str(run), str(tmp_path / "names.csv")])
    assert made.exit_code == 0, made.output
    assert "map.png has the former names: matplotlib failed (RuntimeError: no picture)" in made.output
    assert read_run(run).called(1) == "1 (others)"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("label,name\n0,a\n0,b\n", "names a cluster twice"),
        ("label,name\n5,a\n", "there is no cluster 5"),
        ("cluster,name\n0,a\n", "has no column 'label'"),
        ("label,name\nB,a\n", "'B' is no number"),
    ],
)
def test_a_file_of_wrong_names_changes_nothing(run, tmp_path, text, why):
    (tmp_path / "names.csv").write_text(text)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    made = CliRunner().invoke(main, ["rename", str(run), str(tmp_path / "names.csv")])
    assert made.exit_code == 2
    assert why in made.output
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
