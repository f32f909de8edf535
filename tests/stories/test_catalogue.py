"""A catalogue: one Parquet file with a list per picture and per text, and a price; from the file to reasons."""

from __future__ import annotations

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from viewfuse import SuspiciousDataWarning, read_views
from viewfuse.cli import main
from viewfuse.metrics import clustering_accuracy

N, KINDS = 90, 3
TINY = ("--embedding-dim", 16, "--hidden-dim", 16, "--batch-size", 45, "--learning-rate", 0.002, "--joint-epochs", 2,
        "--pretrain-epochs", 6, "--scaling", "standard", "--device", "cpu")  # fmt: skip
BLOCKS = ("--block", "picture=picture", "--block", "text=text", "--block", "price=price")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::viewfuse.SuspiciousDataWarning")]


def run(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory):
    """Ninety items of three kinds; a third has no picture, another third no text; each kind has its price."""
    rng, kinds = np.random.default_rng(0), np.arange(N) % KINDS
    part = rng.permutation(N) % 3
    columns = {}
    for number, (name, width) in enumerate({"picture": 12, "text": 8}.items()):
        values = rng.normal(scale=3, size=(KINDS, width))[kinds] + rng.normal(size=(N, width))
        lists = [None if part[row] == number else values[row].tolist() for row in range(N)]
        columns[name] = pa.array(lists, pa.list_(pa.float32()))
    price = np.round(np.array([9.9, 49.0, 480.0])[kinds] * rng.lognormal(0, 0.1, N), 2)
    ids = [f"item-{row:03d}" for row in range(N)]
    folder = tmp_path_factory.mktemp("shop")
    titles = [f"thing no. {row}" for row in range(N)]
    pq.write_table(pa.table({"sku": ids, "title": titles, "price": price, **columns}), folder / "items.parquet")
    return folder, dict(zip(ids, kinds.tolist(), strict=True)), dict(zip(ids, price.tolist(), strict=True))


@pytest.fixture(scope="module")
def fitted(catalogue):
    folder, _, _ = catalogue
    said = run("fit", folder / "items.parquet", *BLOCKS, "--log1p", "price", "--clusters", KINDS, "--out",
               folder / "run", *TINY)  # fmt: skip
    assert said.exit_code == 0, said.output
    return said


def test_columns_that_are_left_out_are_told_by_every_verb_and_python(catalogue):
    folder, _, _ = catalogue
    told = "2 column(s) beside those of lists are ignored: 'title', 'price'; --block picture=picture --block "
    for arguments in (("inspect",), ("fit", "--clusters", 99, "--out", folder / "not")):
        said = run(arguments[0], folder / "items.parquet", *arguments[1:])
        assert told in said.stderr.splitlines()[0]
    with pytest.warns(
        SuspiciousDataWarning, match=r"blocks=\{'picture': 'picture', 'text': 'text', 'price': 'price'\}"
    ):
        assert read_views(folder / "items.parquet").names == ("picture", "text")


def test_with_the_blocks_that_were_named_nothing_is_left_out(catalogue):
    folder, _, _ = catalogue
    said = run("inspect", folder / "items.parquet", *BLOCKS, "--json")
    assert not said.stderr
    facts = json.loads(said.stdout)
    assert [(view["name"], view["columns"], view["missing"]) for view in facts["views"]] == [
        ("picture", 12, 30), ("text", 8, 30), ("price", 1, 0),
    ]  # fmt: skip
    assert facts["remarks"] == []


def test_labels_are_the_kinds_of_items(catalogue, fitted):
    folder, kinds, _ = catalogue
    with (folder / "run" / "labels.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == list(kinds)
    assert {row["views_present"] for row in rows} == {"picture text price", "text price", "picture price"}
    assert clustering_accuracy([kinds[row["id"]] for row in rows], [row["label"] for row in rows]) >= 0.95
    reduction = json.loads((folder / "run" / "summary.json").read_text())["decisions"]["reduction"]
    assert reduction["chosen"] == {"picture": "none", "text": "none", "price": "log1p"}
    assert (folder / "run" / "map.png").stat().st_size > 10_000


def test_reasons_are_in_the_units_of_the_shop(catalogue, fitted):
    folder, _, prices = catalogue
    said = run(
        "explain", folder / "run" / "model", folder / "items.parquet", *BLOCKS, "--top", 3, "--out", folder / "why"
    )
    assert said.exit_code == 0, said.output
    assert len([line for line in said.stdout.splitlines() if "deviations" in line]) == 3 * KINDS
    with (folder / "why" / "effects.csv").open() as file:
        effects = list(csv.DictReader(file))
    assert len(effects) == KINDS * (12 + 8 + 1)
    with (folder / "why" / "features.csv").open() as file:
        assert len(list(csv.DictReader(file))) == KINDS * (3 + 3 + 1)
    with (folder / "run" / "labels.csv").open() as file:
        label = {row["id"]: row["label"] for row in csv.DictReader(file)}
    for row in (row for row in effects if row["view"] == "price"):
        inside, outside = ([p for i, p in prices.items() if (label[i] == row["label"]) == own] for own in (True, False))
        assert float(row["mean"]) == pytest.approx(np.mean(inside), rel=1e-5)
        assert float(row["mean_of_others"]) == pytest.approx(np.mean(outside), rel=1e-5)
        size = (np.mean(inside) - np.mean(outside)) / np.std(list(prices.values()))
        assert float(row["difference"]) == pytest.approx(size, rel=1e-4)
