"""The package as others get it: one version everywhere, and a wheel that works in an empty environment."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from conftest import make_blobs
from viewfuse import __version__

ROOT = Path(__file__).parents[1]
PYTHONS = os.environ.get("VIEWFUSE_PYTHONS", "").split()


def test_the_version_is_one_everywhere():
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.M).group(1) == __version__
    latest = re.search(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.M).group(1)
    assert latest in (__version__, "Unreleased")


def test_every_extra_is_in_all_and_in_the_lock():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    inside = set(re.findall(r"[\w-]+", extras["all"][0].removeprefix("viewfuse")))
    assert inside == set(extras) - {"all", "dev", "docs", "ray"}  # Ray takes 240 MB, and few need it
    locked = {line.split("==")[0].lower() for line in (ROOT / "requirements.lock").read_text().splitlines()}
    wanted = {
        re.split(r"[><=]", one)[0] for name, extra in extras.items() if name not in ("all", "ray") for one in extra
    }
    assert {name for name in wanted if "[" not in name} <= locked


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    views, _, _ = make_blobs(40, 2, widths=(4, 6), missing=0.0)
    for name, view, rows in zip(("rna", "protein"), views, (slice(0, 36), slice(6, 40)), strict=True):
        frame = pd.DataFrame(view, index=[f"p{i}" for i in range(40)]).add_prefix(name)
        frame[rows].to_csv(folder / f"{name}.csv", index_label="id")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not PYTHONS, reason="installs torch into a new environment; make test-dist asks for it")
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_works_with_the_core_dependencies_alone(python, tables, tmp_path):
    (wheel,) = (ROOT / "dist").glob("*.whl")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}

    def run(*command, code=0):
        done = subprocess.run(
            [str(one) for one in command], cwd=tables, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    run(python, "-m", "venv", tmp_path / "env")
    run(tmp_path / "env/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", wheel)
    viewfuse, out = tmp_path / "env/bin/viewfuse", tmp_path / "run"
    assert __version__ in run(viewfuse, "--version")
    quick = ("--pretrain-epochs", 4, "--joint-epochs", 1, "--clusters", 2)
    told = run(viewfuse, "fit", "rna.csv", "protein.csv", *quick, "--out", out)
    assert (out / "report.html").stat().st_size > 10_000, told
    run(viewfuse, "predict", out / "model", "rna.csv", "--out", tmp_path / "new.csv")
    assert len((tmp_path / "new.csv").read_text().splitlines()) == 37
    run(viewfuse, "report", out, "--out", tmp_path / "page.html")
    assert "pip install fastapi uvicorn" in run(viewfuse, "serve", out, code=2)
    (tables / "view.parquet").write_bytes(b"PAR1")
    assert "pip install pyarrow" in run(viewfuse, "inspect", "view.parquet", code=2)
