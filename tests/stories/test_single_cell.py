"""A single-cell notebook: a MuData object whose modalities share some cells only, clusters, labels back, new cells."""

from __future__ import annotations

import mudata
import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from anndata.io import read_h5ad
from click.testing import CliRunner
from scipy import sparse

from flat import flat
from viewfuse import URRL, Views, load
from viewfuse.cli import main
from viewfuse.metrics import clustering_accuracy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # of mudata's own
QUICK = {"embedding_dim": 16, "hidden_dim": 32, "pretrain_epochs": 6, "joint_epochs": 2, "scaling": "standard",
         "random_state": 0}  # fmt: skip
GENES, PROTEINS, GROUPS = 80, 9, 3


def sequenced(names, seed):
    """Counts of genes, of which 90 % are zero, and levels of proteins; a third of the cells lacks one of the two."""
    rng, n = np.random.default_rng(seed), len(names)
    groups = rng.integers(GROUPS, size=n)
    rates = np.full((GROUPS, GENES), 0.08)
    levels = np.zeros((GROUPS, PROTEINS))
    for group in range(GROUPS):
        rates[group, 10 * group : 10 * group + 10] = 1.5
        levels[group, 3 * group : 3 * group + 3] = 4
    counts = sparse.csr_matrix(rng.poisson(rates[groups]).astype(np.float32))
    surface = rng.normal(levels[groups]).astype(np.float32)
    with_rna, with_protein = np.arange(n) % 6 != 0, np.arange(n) % 6 != 1
    rna = AnnData(counts[with_rna], obs=pd.DataFrame(index=names[with_rna]),
                  var=pd.DataFrame(index=[f"gene{g}" for g in range(GENES)]))  # fmt: skip
    rna.layers["log1p"] = rna.X.log1p()
    order = rng.permutation(np.flatnonzero(with_protein))  # modalities do not list their cells alike
    protein = AnnData(surface[order], obs=pd.DataFrame(index=names[order]),
                      var=pd.DataFrame(index=[f"cd{p}" for p in range(PROTEINS)]))  # fmt: skip
    return mudata.MuData({"rna": rna, "protein": protein}), pd.Series(groups, index=names)


@pytest.fixture(scope="module")
def story():
    mdata, groups = sequenced(np.array([f"cell{i}" for i in range(180)]), 0)
    model = URRL(GROUPS, **flat(**QUICK)).fit(mdata)
    model.annotate(mdata)
    return mdata, groups, model


def test_labels_confidence_and_embedding_are_in_the_object(story):
    mdata, groups, _ = story
    labels = mdata.obs["viewfuse"]
    assert mdata.n_obs == 180
    assert labels.cat.categories.tolist() == ["0", "1", "2"]
    assert clustering_accuracy(groups[mdata.obs_names].to_numpy(), labels.astype(int).to_numpy()) >= 0.95
    assert mdata.obs["viewfuse_confidence"].between(1 / GROUPS, 1).all()
    assert mdata.obsm["X_viewfuse"].shape == (180, 16)


def test_cells_are_joined_by_name_and_counts_stay_sparse(story):
    mdata, _, model = story
    views = Views(mdata)
    assert [array.shape[1] for array in views.arrays] == [GENES, PROTEINS]
    assert sparse.issparse(views.arrays[0])
    assert views.mask.sum(axis=0).tolist() == [150, 150]
    assert model.ids_.tolist() == mdata.obs_names.tolist()
    logged = Views(mdata, use={"rna": "layers/log1p"})
    assert logged.arrays[0].sum() < views.arrays[0].sum()


def test_a_modality_alone_gets_its_labels_and_keeps_them_in_its_file(story, tmp_path):
    mdata, _, model = story
    rna = mdata["rna"][::-1].copy()
    model.annotate(rna, key="group")
    assert rna.obs["group"].tolist() == mdata.obs["viewfuse"][rna.obs_names].tolist()
    rna.write_h5ad(tmp_path / "rna.h5ad")
    assert read_h5ad(tmp_path / "rna.h5ad").obs["group"].dtype == "category"


def test_new_cells_are_placed(story, tmp_path):
    _, _, fitted = story
    fitted.save(tmp_path / "model")
    model = load(tmp_path / "model")
    new, groups = sequenced(np.array([f"new{i}" for i in range(60)]), 1)
    model.annotate(new, new)
    labels = new.obs["viewfuse"].astype(int)
    assert labels.tolist() == model.predict(new).tolist()
    assert clustering_accuracy(groups[new.obs_names].to_numpy(), labels.to_numpy()) >= 0.9
    alone = model.predict({"protein": new["protein"]})
    assert clustering_accuracy(groups[new["protein"].obs_names].to_numpy(), alone) >= 0.9


@pytest.mark.usefixtures("quick_map")
def test_the_command_line_takes_the_modalities_as_files(story, tmp_path):
    mdata, groups, _ = story
    files = [str(tmp_path / f"{name}.h5ad") for name in mdata.mod]
    for file, part in zip(files, mdata.mod.values(), strict=True):
        part.write_h5ad(file)
    options = [text for name, value in QUICK.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    said = CliRunner().invoke(
        main, ["fit", *files, "--use", "rna=layers/log1p", "--clusters", "3", "--out", str(tmp_path / "run"), *options]
    )
    assert said.exit_code == 0, said.output
    back = read_h5ad(tmp_path / "run" / "protein.h5ad")
    assert clustering_accuracy(groups[back.obs_names].to_numpy(), back.obs["viewfuse"].astype(int).to_numpy()) >= 0.9
