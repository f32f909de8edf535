"""Forty mistakes of a careless hour: each is answered in one line before anything is trained, and none is silent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from viewfuse import URRL, Config, read_views
from viewfuse.cli import main

IDS = [f"p{i}" for i in range(30)]
TINY = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=0), "scaling": "standard"}


def run(arguments: str):
    return CliRunner().invoke(main, arguments.split())


def table(width: int, ids=IDS, seed: int = 0) -> pd.DataFrame:
    values = np.random.default_rng(seed).normal(size=(len(ids), width))
    return pd.DataFrame(values, index=ids, columns=[f"g{c}" for c in range(width)])


def write_files() -> None:
    """What lies on the desk."""
    rna, protein = table(4), table(3, seed=1).add_prefix("q")
    for name, frame in {
        "rna": rna, "protein": protein, "turned": rna.T, "renamed": protein.rename(index=lambda name: f"P-{name}"),
        "hardly": table(2, ids=["p0", *(f"x{i}" for i in range(29))]).add_prefix("q"), "nobody": protein * np.nan,
        "filled": rna.abs().mask(rna > 1.5, -999.0), "flat": rna * 0 + 1, "counting": rna.assign(row=range(30)),
        "infinite": rna.replace(rna.iloc[3, 1], np.inf), "staged": rna.assign(stage=["II", *range(29)]),
        "twice": rna.rename({"p1": "p0"}),
    }.items():  # fmt: skip
        frame.to_csv(f"{name}.csv", index_label="id")
    rna.to_csv("headless.csv", header=False)
    rna.to_csv("no_ids.csv", index=False)
    rna.to_csv("tabs.csv", sep="\t")
    rna.map(lambda x: f"{x:.2f}".replace(".", ",")).to_csv("commas.csv")
    items = {"id": IDS, "price": range(30), "picture": list(rna.to_numpy())}
    pq.write_table(pa.table(items), "items.parquet")
    np.savez("pickled.npz", view_0=np.array([[{}]], dtype=object), allow_pickle=True)
    np.savez("arrays.npz", view_0=rna.to_numpy())
    for name, content in {
        "empty.csv": "", "ragged.csv": "id,x\np0,1\np1,2,3\n", "unnamed.csv": "id,x\np0,1\n,2\n", "sheet.xlsx": "PK",
        "latin.csv": "id,x\nM\xfcller,1\n", "notes.txt": "id x", "known.csv": "patient,group\np0,1\n",
        "others.csv": "id,label\nq0,1\n",
    }.items():  # fmt: skip
        with open(name, "w", encoding="latin-1") as file:
            file.write(content)


@pytest.fixture(scope="module", autouse=True)
def desk(tmp_path_factory):
    """A folder with the files and a model."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_files()
        (folder / "nothing").mkdir()
        (folder / "new").mkdir()
        table(4).to_csv("new/rna.csv", index_label="id")
        table(2).to_csv("new/unknown.csv", index_label="id")
        URRL(2, **TINY, random_state=0).fit(read_views(["rna.csv", "protein.csv"])).save("done/model")
        assert run("predict done/model rna.csv --out done/labels.csv").exit_code == 0
        patch.setattr("viewfuse.methods.urrl.fit.pretrain", None)  # from now on nothing may be trained
        yield


BOTH = "fit rna.csv protein.csv --out run"
REFUSED = {
    "fti rna.csv": "No such command 'fti'",
    "fit rna.csv protein.csv --resume nowhere": "there is no interrupted fit in nowhere; begin one with --out",
    "fit rna.csv --clusters 2": "Missing option '--out'",
    "fit --clusters 2 --out run": "Missing argument '[VIEW=]FILE...'",
    f"{BOTH} --cluster 2": "No such option '--cluster'",
    f"{BOTH} --clusters two": "--clusters must be 'auto' or an integer of at least 1; got 'two'",
    f"{BOTH} --clusters 0": "--clusters must be 'auto' or an integer of at least 1; got 0",
    f"{BOTH} --clusters 99": "30 samples are fewer than --clusters 99",
    f"{BOTH} --clusters 2 --scaling big": "--scaling must be one of auto, ",
    f"{BOTH} --clusters 2 --joint-epochs few": "--joint-epochs must be 'auto' or an integer of at least 0; got 'few'",
    f"{BOTH} --clusters 2 --learning-rate 0": "--learning-rate must be 'auto' or a number above 0",
    f"{BOTH} --clusters 2 --random-state -1": "--random-state must be an integer from 0 to 2**64 - 1; got -1",
    f"{BOTH} --clusters 2 --device gpu": "try --device auto",
    f"{BOTH} --clusters 2 --keep 999": "--keep must be a number of training samples from 1 to 30; got 999",
    f"{BOTH} --clusters 2 --reduction svd": "counts, words, links, for all views or for each; got 'svd'",
    f"{BOTH} --clusters 2 --reduction dna=pca": "--reduction names the view 'dna', but the views are rna, protein",
    f"{BOTH} --clusters 2 --reduction rna=counts": "view 'rna': 'counts' is for values of at least 0",
    f"{BOTH} --clusters 2 --log1p rna --reduction pca": "--log1p and --reduction speak of the same views",
    "fit rna.csv --clusters 2 --out done": "done exists already; give another --out, or --force",
    "fit rna.csv --clusters 2 --out labels.csv": "leave off .csv",
    "fit new/rna.csv --clusters 2 --out new --force": "which is read; give another --out",
    "fit rna.csv nobody.csv --clusters 2 --out run": "view 'nobody' is missing in every row",
    "inspect rna": "rna is no file; check the path",
    "inspect nothing": "is a folder without .npy or .csv",
    "inspect sheet.xlsx": "save it as CSV",
    "inspect notes.txt": ".txt files are not read",
    "inspect rna.csv arrays.npz": "cannot be read together",
    "inspect rna.csv new/rna.csv": "two files are called alike",
    "inspect empty.csv": "is empty; it needs a header",
    "inspect tabs.csv": "is separated by tabs; call the file .tsv",
    "inspect commas.csv": "write 1.5 for one and a half",
    "inspect latin.csv": "save it as UTF-8",
    "inspect headless.csv": "--no-header reads it as a sample, --header as names",
    "inspect rna.csv --no-header": "column '1': 'g0' is not a number",
    "inspect no_ids.csv": "holds measurements, not ids; name the column of ids with --id-column, or add one",
    "inspect rna.csv --id-column patient": "has no column 'patient'; it has 'id', 'g0'",
    "inspect staged.csv": "column 'stage': 'II' is not a number, unlike other cells",
    "inspect infinite.csv": "the value is inf",
    "inspect twice.csv": "id 'p0' appears twice, in data rows 1 and 2",
    "inspect unnamed.csv": "data row 2 has no id",
    "inspect ragged.csv": "data row 2 has 3 cells instead of 2",
    "inspect turned.csv protein.csv": "samples seem to stand in columns; --transpose turned reads it",
    "inspect rna.csv protein.csv --transpose dna": "--transpose names the view 'dna', but the views are rna, protein",
    "inspect rna.csv renamed.csv": "share no id: 'p0', 'p1', 'p2', ... against 'P-p0', 'P-p1', 'P-p2', ...; spell them",
    "inspect rna.csv hardly.csv": "share 1 of 30 ids: 'p1', 'p2', 'p3', ... against 'x0', ",
    "inspect rna.csv --block a=h*": "no column matches block 'a' ('h*')",
    "inspect rna.csv --block a": "--block 'a': write NAME=VALUE",
    "inspect rna.csv --use rna=X": "--use has no meaning for this kind of file",
    "inspect items.parquet --no-header": "--header has no meaning for this kind of file",
    "inspect arrays.npz --transpose view_0": "--transpose has no meaning for this kind of file",
    "inspect pickled.npz": "which could run code",
    "predict nothing rna.csv --out new.csv": "is not a viewfuse model",
    "predict done/model rna.csv --out new.txt": "labels are written as .csv",
    "predict done/model new/unknown.csv --out new.csv": "views ['unknown'] are unknown",
    "explain done/model rna.csv --out why --top 0": "0 is not in the range x>=1",
    "score known.csv done/labels.csv": "it needs the columns id and label",
    "score others.csv done/labels.csv": "share no id",
}
TOLD = {
    "inspect items.parquet": "warning: items.parquet: 1 column(s) beside those of lists are ignored: 'price'; "
    "--block picture=picture --block price=price takes 'price' in",
    "inspect rna.csv nobody.csv": "view 'nobody' is missing in every row",
    "inspect filled.csv": "may stand for nothing, such as -999",
    "inspect flat.csv": "no column of this view ever changes",
    "inspect counting.csv": "count the rows, and may be ids: 'row'",
    "inspect rna.csv renamed.csv --allow-disjoint": "renamed: no sample has this view and another one",
}
PARAMETERS = ("n_clusters", "id_column", "joint_epochs", "random_state", "learning_rate", "allow_disjoint", "n_init")


def test_there_are_forty_mistakes():
    assert len(REFUSED) + len(TOLD) >= 40


@pytest.mark.parametrize("arguments", REFUSED)
def test_a_mistake_is_refused_in_one_line(arguments):
    said = run(arguments)
    assert isinstance(said.exception, SystemExit), said.exception
    assert said.exit_code == 2
    line = said.stderr.splitlines()[-1]
    assert line.startswith("viewfuse: ")
    assert REFUSED[arguments] in line
    assert all(other.startswith("viewfuse: warning: ") for other in said.stderr.splitlines()[:-1])
    assert not said.stdout
    assert not any(name in line for name in PARAMETERS)


@pytest.mark.filterwarnings("default::viewfuse.SuspiciousDataWarning")
@pytest.mark.parametrize("arguments", TOLD)
def test_what_looks_wrong_is_told(arguments):
    said = run(arguments)
    assert "Traceback" not in said.output
    assert [line for line in said.output.splitlines() if TOLD[arguments] in line]
