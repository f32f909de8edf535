"""Cells with thousands of genes beside 20 proteins, from one file to labels, reasons and filled views."""

from __future__ import annotations

import json
import re

import mudata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from click.testing import CliRunner
from scipy import sparse

from viewfuse import URRL, Config, Views, metrics, read_views
from viewfuse.cli import main
from viewfuse.data import views as views_module
from viewfuse.fitted import clusters as effects

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of mudata's own
N, MARKERS = 300, 30
QUICK = ("--pretrain-epochs", 4, "--joint-epochs", 1, "--embedding-dim", 64, "--hidden-dim", 64)
SMALL = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=1), "scaling": "standard"}


def run(*arguments):
    said = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert said.exit_code == 0, said.output
    return said.output


def sequenced(n, genes, per_gene):
    """Counts of three groups, each with 30 marker genes at the front; cells differ in depth."""
    rng, groups = np.random.default_rng(0), np.arange(n) % 3
    rates = np.tile(rng.lognormal(0, 2, size=genes), (3, 1))
    rates /= rates[0].sum()
    for g in range(3):
        rates[g, MARKERS * g : MARKERS * (g + 1)] += 0.1 / MARKERS
    depth = per_gene * genes * rng.lognormal(0, 0.3, size=(n, 1))
    return sparse.csr_matrix(rng.poisson(rates[groups] * depth).astype(np.float32)), groups


def write(path, rna, protein, rows):
    """Cells at `rows`, a third of which lack a modality."""
    having = {"rna": [i for i in rows if i % 18 > 2], "protein": [i for i in rows if i % 18 < 15]}
    parts = {"rna": (rna, having["rna"]), "protein": (protein, having["protein"])}
    made = {}
    for name, (matrix, cells) in parts.items():
        columns = pd.DataFrame(index=[f"{name}{c}" for c in range(matrix.shape[1])])
        made[name] = AnnData(matrix[cells], obs=pd.DataFrame(index=[f"cell{i}" for i in cells]), var=columns)
    mudata.MuData(made).write(path)
    return path


@pytest.fixture(scope="module", params=[5_000, pytest.param(20_000, marks=pytest.mark.slow)])
def genes(request):
    """How many there are; of the more a network of the usual size learns for the usual time."""
    return request.param


@pytest.fixture(scope="module")
def story(genes, tmp_path_factory, quick_map):
    """The file, a file of its first cells, the run folder, what was said, and the groups."""
    folder = tmp_path_factory.mktemp("cells")
    rna, groups = sequenced(N, genes, 900 / genes)
    protein = (np.random.default_rng(1).normal(size=(N, 20)) + groups[:, None] * (np.arange(20) % 3)).astype(np.float32)
    file = write(folder / "cells.h5mu", rna, protein, range(N))
    few = write(folder / "few.h5mu", rna, protein, range(12))
    said = run("fit", file, "--clusters", 3, "--out", folder / "run", *(QUICK if genes < 20_000 else ()))
    return file, few, folder / "run", said, dict(zip([f"cell{i}" for i in range(N)], groups.tolist(), strict=True))


def test_groups_are_found_and_decisions_say_how(story, genes):
    _, _, out, said, groups = story
    table = pd.read_csv(out / "labels.csv")
    assert len(table) == N
    assert metrics.clustering_accuracy(table["id"].map(groups).to_numpy(), table["label"].to_numpy()) > 0.9
    assert f"rna, counts, from {genes:,} to 17 columns" in said
    summary = json.loads((out / "summary.json").read_text())
    assert summary["decisions"]["reduction"]["chosen"] == {"rna": "counts", "protein": "none"}
    assert summary["params"]["reduction"] == "auto"


@pytest.mark.slow
def test_the_same_file_gives_the_same_labels(story, tmp_path):
    file, few, out, _, _ = story
    expected = pd.read_csv(out / "labels.csv", index_col="id")
    for path, name in ((file, "all"), (few, "few")):
        run("predict", out / "model", path, "--out", tmp_path / f"{name}.csv")
        found = pd.read_csv(tmp_path / f"{name}.csv", index_col="id")
        assert found["out_of_range"].sum() == 0
        columns = ["label", "confidence", "views_present"]
        assert found[columns].equals(expected.loc[found.index, columns])
    again, whole = URRL.load(out / "model", device="cpu"), read_views(file)
    assert np.array_equal(again.transform(whole), np.load(out / "embedding.npy"))


def test_marker_genes_are_named_and_no_table_of_all_genes_is_made(story, genes, tmp_path, monkeypatch):
    file, _, out, _, _ = story
    largest = []

    def watched(array, rows, make=effects.dense_rows):
        largest.append(make(array, rows).shape[0])
        return make(array, rows)

    def refused(name, matrix):
        raise AssertionError(f"{name} {matrix.shape} was made dense")

    monkeypatch.setattr(effects, "_CELLS_PER_CHUNK", 50 * genes)
    monkeypatch.setattr(effects, "dense_rows", watched)
    monkeypatch.setattr(views_module, "all_dense", refused)
    run("explain", out / "model", file, "--out", tmp_path / "why")
    assert max(largest) <= 50 or max(largest) == 252  # proteins are few, and dense anyway
    features = pd.read_csv(tmp_path / "why" / "features.csv").query("view == 'rna'")
    for _, own in features.groupby("label"):
        numbers = own.loc[own["difference"] > 0, "feature"].str.removeprefix("rna").astype(int)
        assert len(numbers) >= 3
        assert (numbers < 3 * MARKERS).all()
        assert len(set(numbers // MARKERS)) == 1


def test_filled_views_have_all_genes_and_keep_what_was_there(story, genes, tmp_path):
    _, few, out, _, groups = story
    run("impute", out / "model", few, "--out", tmp_path / "filled")
    before = read_views(few).dense()
    filled = pd.read_csv(tmp_path / "filled" / "rna.csv", index_col="id").loc[before.ids]
    assert filled.columns.tolist() == [f"rna{c}" for c in range(genes)]
    there = before.mask[:, 0]
    assert np.array_equal(filled[there].to_numpy(np.float32), before.arrays[0][there])
    assert there.sum() == 9
    for name in before.ids[~there]:
        own = filled.loc[name].to_numpy()[: 3 * MARKERS].reshape(3, MARKERS).mean(axis=1)
        assert own.argmax() == groups[name]


def test_components_are_stored_once(story, genes):
    _, _, out, _, _ = story
    model = URRL.load(out / "model", device="cpu")._model
    held = sum(array.nbytes for one in model.reduction.front_ends for array in one.arrays().values())
    assert held == 4 * genes * (17 + 3)  # components, mean and bounds
    trained = 4 * sum(one.numel() for one in model.network.parameters())
    size = sum(path.stat().st_size for path in (out / "model").iterdir())
    assert size < held + trained + 2_500_000  # samples, names of genes


def test_inspect_shows_kinds_and_what_a_fit_costs(story, genes):
    file, *_ = story
    lines = [line.split() for line in run("inspect", file).splitlines()]
    assert ["rna", "counts", str(genes), "17"] in [line[:4] for line in lines]
    assert ["protein", "measurements", "20", "-", "-", "252", "48"] in [line[:7] for line in lines]
    said = (
        r"a fit with default settings: about .+ where clusters are clear, at most .+ \(.+ for more than 12 clusters\) "
        r"on this CPU; 760 steps of \d+ ms, 0\.\d million parameters"
    )
    assert re.match(said, " ".join(lines[-1]))
    facts = json.loads(run("inspect", file, "--json"))
    rna, protein = facts["views"]
    assert (rna["kind"], rna["reduction"], rna["reduced_columns"]) == ("counts", "counts", 17)
    assert 0 < rna["variance_kept"] < 1 == protein["variance_kept"]
    fit = facts["fit"]
    times = {"least_seconds", "seconds", "seconds_of_many", "step_seconds"}
    assert set(fit) == {*times, "steps", "parameters", "bytes"}
    assert fit["seconds"] >= 760 * fit["step_seconds"] - 0.1
    assert fit["step_seconds"] * 4 * (29 + 22) < fit["least_seconds"] < fit["seconds"] / 2  # the trial, and .3 of 75


@pytest.fixture(scope="module")
def small():
    """A model of 90 cells with 600 genes, with the counts and who has them."""
    counts = sequenced(90, 600, 2.0)[0].toarray()
    mask = np.ones((90, 2), dtype=bool)
    mask[::4, 0] = False
    return fitted(counts, mask), counts, mask


def fitted(counts, mask):
    measured = np.random.default_rng(2).normal(size=(90, 4)) + np.arange(90)[:, None] % 3
    return URRL(3, random_state=0, device="cpu", **SMALL).fit(Views({"rna": counts, "vitals": measured}, mask=mask))


@pytest.mark.slow
def test_junk_in_hidden_rows_changes_no_bit(small):
    model, counts, mask = small
    assert model.decisions_["reduction"]["chosen"]["rna"] == "counts"
    junk = np.where(mask[:, :1], counts, 1e6 * np.random.default_rng(0).random(counts.shape))
    assert np.array_equal(fitted(junk, mask).embedding_, model.embedding_)


@pytest.mark.slow
def test_the_order_of_columns_does_not_matter(small):
    model, counts, mask = small
    mixed = fitted(counts[:, np.random.default_rng(0).permutation(600)], mask)
    assert mixed.embedding_ == pytest.approx(model.embedding_, abs=1e-3)
    assert np.array_equal(mixed.labels_, model.labels_)


def test_depth_of_a_cell_does_not_matter(small):
    model, counts, mask = small
    rows = np.flatnonzero(mask[:, 0])[:20]
    once, thrice = (model.predict_proba({"rna": counts[rows] * np.float32(times)}) for times in (1, 3))
    assert thrice == pytest.approx(once, abs=1e-3)
    assert np.array_equal(thrice.argmax(axis=1), once.argmax(axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix], ids=["dense", "sparse"])
def test_company_changes_no_bit(small, make):
    """In float64 products differ with the number of rows; of that nearly nothing is left in float32."""
    _, counts, _ = small
    model = URRL(3, random_state=0, device="cpu", **SMALL).fit({"rna": make(counts)})
    for rows in (slice(0, 1), slice(3, 10), slice(40, 90)):
        assert np.array_equal(model.transform({"rna": make(counts[rows])}), model.embedding_[rows])
