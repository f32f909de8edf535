"""Omics: patients in rows of one table and in columns of the other, empty cells, new patients with shuffled genes."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from viewfuse.cli import main
from viewfuse.metrics import clustering_accuracy

QUICK = ["--pretrain-epochs", "5", "--joint-epochs", "2", "--scaling", "standard", "--embedding-dim", "16",
         "--hidden-dim", "16"]  # fmt: skip


def run(*arguments, exit_code=0):
    result = CliRunner().invoke(main, [str(a) for a in arguments])
    assert result.exit_code == exit_code, result.output
    return result.output


@pytest.fixture
def hospital(tmp_path):
    """120 patients of three kinds, 100 of them known, with 40 genes and 12 proteins; 5 % of the cells are empty.

    The proteins are in the rows of their tables, and the patients in the columns.
    """
    rng = np.random.default_rng(0)
    kinds = np.arange(120) % 3
    ids = [f"P{i:03}" for i in range(120)]
    tables = {}
    for name, width in (("rna", 40), ("protein", 12)):
        values = rng.normal(scale=2, size=(3, width))[kinds] + rng.normal(size=(120, width))
        values[rng.random(values.shape) < 0.05] = np.nan
        tables[name] = pd.DataFrame(values, index=ids, columns=[f"{name}_{c}" for c in range(width)])
    lost = {"rna": rng.choice(100, 15, replace=False), "protein": rng.choice(100, 15, replace=False)}
    lost["protein"] = np.setdiff1d(lost["protein"], lost["rna"])
    known = {name: table[:100].drop(index=np.array(ids)[lost[name]]) for name, table in tables.items()}
    known["rna"].to_csv(tmp_path / "rna.csv", index_label="patient")
    known["protein"].T.to_csv(tmp_path / "protein.csv", index_label="protein")
    genes = tables["rna"][100:].drop(columns="rna_7").assign(novel=rng.normal(size=20))
    genes[rng.permutation(genes.columns)].to_csv(tmp_path / "march.csv", index_label="patient")
    tables["protein"][100:].T.to_csv(tmp_path / "march_protein.csv", index_label="protein")
    return tmp_path, kinds


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("quick_map")
def test_patients_are_clustered_and_new_ones_placed(hospital):
    folder, kinds = hospital
    rna, protein, out = folder / "rna.csv", folder / "protein.csv", folder / "run"
    assert "samples seem to stand in columns; --transpose protein" in run("inspect", rna, protein, exit_code=2)
    turned = ("--transpose", "protein")
    said = run("inspect", rna, protein, *turned)
    assert "100 samples, 2 views" in said
    assert "empty cells, which a fit fills, protein: " in said
    said = run("fit", rna, protein, *turned, "--clusters", 3, "--out", out, *QUICK)
    assert "filled from the nearest rows; rna: " in said
    labels = pd.read_csv(out / "labels.csv", index_col="id")["label"]
    known = kinds[[int(name[1:]) for name in labels.index]]
    assert clustering_accuracy(known, labels.to_numpy()) >= 0.97

    new = (f"rna={folder / 'march.csv'}", f"protein={folder / 'march_protein.csv'}")
    said = run("predict", out / "model", *new, *turned, "--out", folder / "new.csv")
    assert "ignored: rna 1 ('novel')" in said
    assert "'rna_7' (20)" in said
    placed = pd.read_csv(folder / "new.csv", index_col="id")["label"]
    name_of = {kind: labels[known == kind].mode()[0] for kind in range(3)}
    assert [name_of[kinds[int(name[1:])]] for name in placed.index] == placed.tolist()
