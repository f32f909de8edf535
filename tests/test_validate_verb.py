"""viewfuse validate: a run whose clusters are measured by repeated fits."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from conftest import make_blobs
from viewfuse import URRL, Config, load
from viewfuse.cli import main
from viewfuse.data.views import Views
from viewfuse.fitted.explanation import sheets
from viewfuse.io.writers import as_json, write_labels, write_sheets
from viewfuse.plots.layout import place_samples
from viewfuse.report.run_folder import write_evidence

QUICK = {"config": Config(embedding_dim=8, hidden_dim=16, pretrain_epochs=2, joint_epochs=1, learning_rate=2e-3)}
QUICK |= {"scaling": "standard", "random_state": 0}


def run(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def fitted():
    views = Views(make_blobs(45, 3, missing=0.3)[0])
    return views, URRL(3, **QUICK).fit(views)


@pytest.fixture
def folder(fitted, tmp_path):
    views, model = fitted
    model.save(tmp_path / "model")
    write_labels(tmp_path / "labels.csv", views, model.judge())
    write_evidence(tmp_path, model, views, place_samples(model.embedding_))
    facts = {"views": list(views.names), "cluster_sizes": np.bincount(model.labels_).tolist(), "params": {}}
    (tmp_path / "summary.json").write_bytes(as_json({**facts, "decisions": model.decisions_}).encode())
    return tmp_path


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_run_is_validated_where_it_is(folder, fitted):
    views = fitted[0]
    before = rows_of(folder / "labels.csv")
    made = run("validate", folder, "--refits", 2, "--json")
    assert made.exit_code == 0, made.output
    fitted, after = load(folder / "model"), rows_of(folder / "labels.csv")
    assert fitted.trust_.refits == 2
    for name in ("id", "label", "views_present"):
        assert [row[name] for row in after] == [row[name] for row in before]
    assert [float(row["confidence"]) for row in after] == pytest.approx(fitted.soft_labels_.max(axis=1), abs=1e-4)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["decisions"]["trust"]["refits"] == 2
    assert "measured by 2 repeated fits" in (folder / "report.html").read_text()
    assert not (folder / "validation").exists()
    check_files_agree(folder, fitted, views)


def check_files_agree(folder, model, views):
    """Those that explain the samples, and the table of clusters, had what was estimated before."""
    clusters, again = rows_of(folder / "explanation" / "clusters.csv"), model.trust_.clusters
    assert [row["stability"] for row in clusters] == [f"{one['again']:.4f}" for one in again]
    shown = rows_of(folder / "report_data" / "clusters.csv")
    assert [(row["found_again"], row["in_a_word"]) for row in shown] == [
        (row["stability"], row["again"]) for row in clusters
    ]
    labels = {row["id"]: row["confidence"] for row in rows_of(folder / "labels.csv")}
    assert {row["id"]: row["confidence"] for row in rows_of(folder / "explanation" / "samples.csv")} == labels
    written = [folder / "explanation" / name for name in ("samples.csv", "clusters.csv", "merges.csv", "features.csv")]
    found = [path.read_text() for path in written]
    write_sheets(folder / "explanation", sheets(model.explain(model.complete(views)[0])))
    assert [path.read_text() for path in written] == found


def test_results_in_copies_of_objects_are_written_again(fitted, folder, monkeypatch):
    anndata = pytest.importorskip("anndata")
    names = [str(one) for one in fitted[0].ids.tolist()]
    anndata.AnnData(np.eye(len(names)), obs=pd.DataFrame(index=names)).write_h5ad(folder / "a.h5ad")
    facts = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**facts, "files": ["a.h5ad"]}))
    monkeypatch.setattr(URRL, "validate", lambda self, n_refits: self)
    assert run("validate", folder, "--refits", 2).exit_code == 0
    found = anndata.read_h5ad(folder / "a.h5ad").obs["viewfuse_confidence"]
    assert found.to_numpy() == pytest.approx(fitted[1].soft_labels_.max(axis=1))


def test_a_model_without_all_of_its_samples_cannot_be_validated(folder):
    load(folder / "model").save(folder / "model", keep=20)
    refused = run("validate", folder, "--refits", 2)
    assert refused.exit_code == 2
    assert "keeps 20 of its samples; fit again without --keep" in refused.output
