"""The house rules: imports point one way, torch stays out of the light modules, the documents are true."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
import subprocess
import sys
import threading
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from viewfuse.methods.urrl.config import Epochs

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "viewfuse"
ROOMS = (
    "errors", "utils", "data", "reduction", "io", "nn", "neighbors", "selection", "engine", "fitted",
    "plots", "methods", "metrics", "missing", "baselines", "datasets", "report", "comparison", "distributed",
    "serve", "cli", "__main__",
)  # fmt: skip
"""Packages, and modules on top, in the order in which the data walk through them; each may import those before it."""
WITHOUT_TORCH = (
    "utils.atomic", "utils.memory", "data.views", "data.scaling", "data.checks", "io.readers", "io.writers",
    "methods.urrl.config", "metrics", "missing", "datasets", "reduction.reduce", "report.page",
    "cli.inspect", "cli.fit", "cli.predict", "cli.runs",
)  # fmt: skip
"""They do without scikit-learn as well: both take longer to import than most commands run."""


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> list[ast.ImportFrom | ast.ClassDef]:
    """All imports and classes of a file: most of the time of these tests was spent on looking for them again."""
    return [node for node in ast.walk(parsed(path)) if isinstance(node, (ast.ImportFrom, ast.ClassDef))]


def imported_rooms(path: Path) -> set[str]:
    """Rooms of the project that a file imports from; that of the estimator, where it asks for URRL."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "viewfuse":
            inside = node.module.split(".")[1:]
            names = inside[:1] or ["methods" if alias.name in ("URRL", "load") else alias.name for alias in node.names]
            found.update(names)
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"relative import in {path}"
    return found


def modules_of(room: str) -> list[Path]:
    path = SOURCE / f"{room}.py"
    return [path] if path.exists() else sorted((SOURCE / room).rglob("*.py"))


def test_every_module_has_a_room():
    here = {path.stem for path in SOURCE.glob("*.py")} | {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert here - {"__init__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    before = set(ROOMS[: ROOMS.index(room)])
    for file in modules_of(room):
        assert imported_rooms(file) <= before | {room}, f"{file} imports what comes after it"


def test_every_room_says_what_lives_there_and_has_a_dozen_files_at_most():
    for path in SOURCE.rglob("__init__.py"):
        assert ast.get_docstring(parsed(path)), path
        assert path.parent == SOURCE or len(list(path.parent.glob("*.py"))) <= 13, path  # twelve, and __init__


def test_no_modules_import_each_other_in_a_circle():
    names = {module_name(path).removesuffix(".__init__"): path for path in SOURCE.rglob("*.py")}
    asks: dict[str, set[str]] = {}
    for name, path in names.items():
        found = [node for node in nodes(path) if isinstance(node, ast.ImportFrom)]
        inner = {f"{node.module}.{alias.name}" for node in found for alias in node.names}
        asks[name] = ((inner | {str(node.module) for node in found}) & names.keys()) - {name, "viewfuse"}
    while free := [name for name, others in asks.items() if not others & asks.keys()]:
        for name in free:
            del asks[name]
    assert asks == {}


def test_light_modules_do_without_torch():
    names = ", ".join(f"viewfuse.{name}" for name in WITHOUT_TORCH)
    code = f"import sys, viewfuse, {names}; sys.exit(bool({{'torch', 'sklearn', 'jinja2'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_are_unknown():
    import viewfuse

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        viewfuse.nothing  # noqa: B018


@pytest.mark.parametrize("epochs", [(5, 0), pytest.param(None, marks=pytest.mark.slow)], ids=["quick", "default"])
def test_readme_example_runs(capsys, monkeypatch, epochs):
    if epochs:
        monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(*epochs))
    block = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    scope: dict = {}
    exec(compile(block, "README.md", "exec"), scope)
    labels = scope["labels"]
    assert [len(set(labels[i : i + 20])) for i in (0, 20, 40)] == [1, 1, 1]
    assert len(set(labels)) == 3
    assert capsys.readouterr().out.strip() == f"[{labels[0]} {labels[1]}]"


def table_rows() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "paper.md").read_text()
    return re.findall(r"^\|[^|]+\|[^|]+\| `([^`]+)` \| `([^`]+)` \|$", text, re.M)


def test_the_map_of_the_paper_is_whole():
    assert len(table_rows()) >= 24


def test_the_map_of_the_paper_leads_somewhere():
    for function, test in table_rows():
        module, name = function.rsplit(".", 1)
        assert hasattr(importlib.import_module(f"viewfuse.{module}"), name), function
        file, test_name = test.split("::")
        assert re.search(rf"^def {test_name}\(", (ROOT / "tests" / file).read_text(), re.M), test


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)


def test_every_module_can_be_imported():
    for path in SOURCE.rglob("*.py"):
        if path.stem != "__main__":
            importlib.import_module(module_name(path).removesuffix(".__init__"))


EXAMPLES = [path for path in SOURCE.rglob("*.py") if ">>> " in path.read_text()]
"""Pytest would look for them in every module, in every process, which takes longer than to run them."""


@pytest.mark.parametrize("path", EXAMPLES, ids=module_name)
def test_examples_of_docstrings_run(path, monkeypatch):
    monkeypatch.setattr("viewfuse.methods.urrl.config.Config.epochs", lambda self, n: Epochs(5, 0))
    found = doctest.testmod(importlib.import_module(module_name(path)))
    assert found.attempted > 0
    assert found.failed == 0


def test_no_two_classes_have_one_name():
    names = Counter(
        node.name for path in SOURCE.rglob("*.py") for node in nodes(path) if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == set()


def test_files_stay_readable():
    lengths = {module_name(path): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    assert max(lengths.values()) <= 450, lengths


def test_a_plain_fit_of_plain_arrays_goes_through_few_files():
    """A newcomer can hold them; labelled, sparse, categorical data, hints, checkpoints, ... have files of their own."""
    from viewfuse import URRL, Config

    rng, kind, files = np.random.default_rng(0), np.repeat([0.0, 4.0, 8.0], 20)[:, None], set[str]()
    views = {"song": rng.normal(size=(60, 6)) + kind, "photo": rng.normal(size=(60, 20)) - kind}
    views["photo"][::3] = np.nan

    def notice(frame, event, argument):
        files.update([frame.f_code.co_filename] if event == "call" else ())

    threading.setprofile(notice)
    sys.setprofile(notice)
    try:
        config = Config(pretrain_epochs=2, joint_epochs=2)
        URRL(n_clusters=3, config=config, random_state=0, device="cpu").fit_predict(views)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = sorted(file for file in files if file.startswith(str(SOURCE)))
    assert len(ours) <= 30, ours


PRIVATE_WORDS = re.compile(
    r"\b(told|hangs?|hung|gone on|goes? on|nobody|somebody|whoever|anybody|everybody|in (any )?company|become what|"
    r"apologi[sz]e|lots?|lanes?|deaf)\b|made a mistake|\blet \w+ be so\b",
    re.IGNORECASE,
)
"""Use the usual words instead: resume, depends on, no sample, the caller, batch, tie-break keys, queue."""
BENCHMARKS = [path for path in (ROOT / "benchmarks").rglob("*.py") if "studies" not in path.parts]
PROSE = [*BENCHMARKS, *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "results").glob("*.md")]


def words_of(path: Path) -> list[str]:
    """Lines of prose; of code all docstrings, comments and texts, and names with their parts as words."""
    text = path.read_text(encoding="utf-8")
    return (text.replace("_", " ") if path.suffix == ".py" else text).splitlines()


def test_words_are_the_usual_ones():
    found = [
        f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
        for path in (*SOURCE.rglob("*.py"), *PROSE)
        for i, line in enumerate(words_of(path), 1)
        if PRIVATE_WORDS.search(line)
    ]
    assert found == []
