"""Every feature of version 0.2 is still there: `features_of_0_2.toml` lists them, and how each is checked."""

from __future__ import annotations

import inspect
import json
import pkgutil
import tomllib
from functools import cache, reduce
from operator import getitem
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

import viewfuse
from viewfuse.cli import main

ROOT = Path(__file__).parents[1]
LIST = tomllib.loads((ROOT / "tests" / "features_of_0_2.toml").read_text())
MOVED = LIST.pop("moved")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a tiny run, the only fit here."""
    folder, rng = tmp_path_factory.mktemp("features"), np.random.default_rng(0)
    groups = 4 * (np.arange(40) % 2)[:, None]
    np.savez(folder / "x.npz", **{view: rng.normal(size=(40, 3)) + groups for view in ("rna", "protein")})
    how = "--trusted --pretrain-epochs 2 --joint-epochs 1 --cluster-range 2 3 --random-state 0 --device cpu --out"
    assert CliRunner().invoke(main, ["fit", str(folder / "x.npz"), *how.split(), str(folder / "run")]).exit_code == 0
    return folder / "run"


@cache
def model_of(folder):
    return viewfuse.load(folder / "model", device="cpu")


@cache
def routes_of(folder):
    from viewfuse.serve import app, inference

    routes = app.create_app(inference.open_folder(folder, "cpu")).routes
    return {f"{method} {one.path}" for one in routes for method in one.methods}


def has_name(name):
    path, _, parameter = name.rstrip("=)").partition("(")
    found = pkgutil.resolve_name(path)
    return not parameter or parameter in inspect.signature(found).parameters


def has_words(group, verb, *words):
    params = group.get_command(click.Context(group), verb).params
    return {*words} <= {word for one in params for word in (*one.opts, *one.secondary_opts)}


def has_file(file, inside=""):
    text = file.read_bytes().decode("latin-1")
    return not inside or inside in (json.loads(text) if file.suffix == ".json" else text.splitlines()[0].split(","))


def has_reader(ending, folder):
    """Nonsense is refused for what it holds, and not for its ending."""
    (folder / ending).mkdir()
    (folder / ending / f"x{ending}").write_bytes(b"\0nonsense")
    with pytest.raises(viewfuse.DataError) as refused:
        viewfuse.read_views(folder / ending / ("" if ending == ".npy" else f"x{ending}"), trusted=True)
    return "files are not read" not in str(refused.value)


CHECKS = {
    "python": lambda name, run: has_name(name),
    "fitted": lambda name, run: (
        reduce(getitem, name.split(".")[1:], getattr(model_of(run), name.split(".")[0])) is not None
    ),
    "values": lambda name, run: viewfuse.URRL(**dict([name.split(": ")]))._config() is not None,
    "colours": lambda name, run: f'"{name}"' in viewfuse.URRL.plot_map.__doc__,
    "methods": lambda name, run: name in viewfuse.methods.method_names(),
    "run_folder": lambda name, run: has_file(run / name.split(": ")[0], *name.split(": ")[1:]),
    "verbs": lambda name, run: has_words(main, *name.split()),
    "options": lambda name, run: all(has_words(main, verb, name.split(":")[0]) for verb in name.split()[1:]),
    "benchmarks": lambda name, run: has_words(pkgutil.resolve_name("benchmarks.command:main"), *name.split()),
    "routes": lambda name, run: name in routes_of(run),
    "formats": lambda name, run: has_reader(name, run.parent),
    "extras": lambda name, run: f"\n{name} = [" in (ROOT / "pyproject.toml").read_text(),
    "make": lambda name, run: f"\n{name}:" in (ROOT / "Makefile").read_text(),
    "behaviour": lambda name, run: f"def {name.split()[1]}(" in (ROOT / "tests" / name.split()[0]).read_text(),
}


def is_there(kind, name, run):
    try:
        return CHECKS[kind](name, run)
    except (AttributeError, ImportError, KeyError, FileNotFoundError, viewfuse.SettingError, click.UsageError):
        return False


@pytest.mark.parametrize("kind", LIST)
def test_features_are_there(kind, run):
    assert [name for name in LIST[kind] if not is_there(kind, name, run)] == []


@pytest.mark.parametrize("old", MOVED)
def test_what_moved_is_where_the_list_says(old, run):
    """The former spelling warns once, or is gone."""
    kind, now = MOVED[old]["now"].split(" ", 1)
    assert is_there(kind, now, run)
    if MOVED[old]["old"] == "gone":
        assert not is_there("verbs" if old.startswith("bench ") else kind, old, run)
    else:
        parameter = old.rpartition("(")[2].rstrip("=)")
        value = getattr(viewfuse.Config(), parameter, {})
        with pytest.warns(FutureWarning) as heard:
            viewfuse.URRL(**{parameter: value}) if kind == "python" else getattr(model_of(run), old)
        assert len(heard) == 1
