"""No file that a verb writes, and no table that a page saves, holds a formula, whatever data and labels are called."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from importlib import resources

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from sharded_data import QUICK
from viewfuse.cli import main
from viewfuse.distributed.fit_large import fit_large
from viewfuse.io.formulas import marked

HOSTILE = ["=cmd|'/c calc'!A0", "+1+1", "-x", "@SUM(A1)", "\t=1", "a;=1", "a,+b", " =2", "＝3", "-x|@y", 'q;"=1']  # noqa: RUF001
FORMULA = re.compile(r"\s*[=+@＝＋＠－-]")  # noqa: RUF001
NUMBER = re.compile(r"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|inf|nan)\"?(,|$)")


def formulas(text):
    """Cells that a spreadsheet would run, whichever sign separates cells where it is opened."""
    found = set()
    for delimiter in ",;\t|":
        for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter):
            found |= {cell for cell in row if FORMULA.match(cell) and not NUMBER.match(cell)}
    return found


def table(path, names, ids, seed):
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", *names])
        for i, name in enumerate(ids):
            rows.writerow([name, *(round(x, 3) for x in rng.normal(size=len(names)) + 9 * (i % 2))])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """All that verbs write of data whose ids, columns, views and labels are formulas."""
    place = tmp_path_factory.mktemp("formulas")
    ids = [f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(24)]
    table(place / "a.csv", HOSTILE[:4], ids, 0)
    table(place / "b.csv", HOSTILE[4:7], ids[:18], 1)
    with (place / "known.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "=class"])
        rows.writerows([name, HOSTILE[i % 2 * 2]] for i, name in enumerate(ids))
    rng = np.random.default_rng(2)
    names = [f"{view}.{name}" for view in ("+v", "@w") for name in ("=c1", "-c2", "c")]
    columns = {name: rng.normal(size=60) + 9 * (np.arange(60) % 2) for name in names}
    (place / "shards").mkdir()
    pq.write_table(pa.table({"id": [f"={i}" for i in range(60)], **columns}), place / "shards" / "one.parquet")
    files, model = [f"+v={place / 'a.csv'}", f"x;@w={place / 'b.csv'}"], place / "run" / "model"
    quick = ["--pretrain-epochs", 1, "--joint-epochs", 1, "--scaling", "standard", "--hidden-dim", 8]
    verbs = [
        ["fit", *files, "--clusters", 2, *quick, "--embedding-dim", 4, "--out", place / "run"],
        ["predict", model, *files, "--out", place / "labels.csv"],
        ["embed", model, *files, "--out", place / "embedding.csv"],
        ["impute", model, *files, "--out", place / "filled"],
        ["explain", model, *files, "--out", place / "explained"],
        ["report", place / "run", "--known", place / "known.csv", "--out", place / "page.html"],
        ["report", place / "run", place / "run", "--out", place / "pair.html"],
        ["compare", *files, "--clusters", 2, "--methods", "kmeans-mean", "--seeds", 1, "--out", place / "compared"],
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.cli.fit.draw_map", lambda *_, **__: None)
        for verb in verbs:
            said = CliRunner().invoke(main, [str(word) for word in verb])
            assert said.exit_code == 0, (verb, said.output)
    fit_large(place / "shards", place / "large", 2, **{**QUICK, "bank": 40, "batch_size": 20, "steps": 2})
    given = {place / name for name in ("a.csv", "b.csv", "known.csv")}
    return {path.relative_to(place).as_posix(): path for path in place.rglob("*.csv") if path not in given}


def test_no_file_of_any_verb_holds_a_formula(written):
    wanted = {"run/labels.csv", "labels.csv", "embedding.csv", "large/columns.csv", "compared/table.csv"}
    assert wanted <= set(written)
    assert any("known_" in name for name in written)
    found = {name: formulas(path.read_bytes().decode()) for name, path in written.items()}
    assert {name: cells for name, cells in found.items() if cells} == {}


def test_numbers_stay_numbers(written):
    for name in ("embedding.csv", "large/columns.csv"):
        rows = list(csv.reader(io.StringIO(written[name].read_text())))
        assert any(cell.startswith("-") for row in rows[1:] for cell in row), "there are negative numbers"
        assert not [cell for row in rows[1:] for cell in row if re.fullmatch(r"'[+-]?[\d.]+", cell)]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_table_that_the_page_saves_is_written_as_other_files_are():
    cells = [*HOSTILE, "-1.5", "+2e-3", "plain", "'=1", "a'b", "\r@x", "x\n-y", ""]
    base = (resources.files("viewfuse.report") / "assets" / "base.js").read_text(encoding="utf-8")
    script = base[base.index("function csvCell") : base.index("function saveCsv")]
    script += f"console.log(JSON.stringify({json.dumps(cells)}.map(csvCell)))"
    said = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True).stdout
    lines = [next(csv.reader(io.StringIO(cell, newline="")), [""]) for cell in json.loads(said)]
    assert [cell for line in lines for cell in line] == [marked(cell) for cell in cells]
