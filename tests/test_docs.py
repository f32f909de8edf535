"""Every code block of README and docs runs; pages are easy to read; every public name is shown at work."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import warnings
from functools import reduce
from pathlib import Path

import click
import joblib
import pytest

from doc_pages import DATA, PAGES, ROOT, TUTORIALS, Reader, blocks, prose
from viewfuse.methods.urrl.config import Epochs

SHORT = {"embedding_dim": 8, "hidden_dim": 8, "scaling": "standard"}


def short(page) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Where a reader works: an empty folder with the tables of the tutorials."""
    for table in DATA.glob("*.csv"):
        shutil.copy(table, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield tmp_path
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture
def hurry(monkeypatch):
    """Small networks that hardly train: a page takes a second; `-m slow` runs pages as they are."""
    from viewfuse import URRL, EmptyClusterWarning, JointStageWarning
    from viewfuse.methods import COMPLETER, CPSPAN, DCP, DSIMVC, SURE
    from viewfuse.methods.urrl.config import Config

    monkeypatch.setattr(Config, "epochs", lambda self, n: Epochs(1, 0))
    monkeypatch.setattr(Config, "usual_trainings", 1)
    monkeypatch.setattr(URRL.validate.__wrapped__, "__defaults__", (2,))
    monkeypatch.setattr(URRL.__init__, "__kwdefaults__", URRL.__init__.__kwdefaults__ | SHORT)
    for method in (COMPLETER, CPSPAN, DCP, DSIMVC, SURE):
        defaults = method.__init__.__kwdefaults__ | {"hidden_dims": (8,)}
        monkeypatch.setattr(method.__init__, "__kwdefaults__", defaults)
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: Path(path).write_bytes(b""))
    for category in (EmptyClusterWarning, JointStageWarning):
        warnings.simplefilter("ignore", category)
    with joblib.parallel_config(backend="sequential"):  # other processes would not hurry
        yield


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What fits wrote that several pages ask for."""
    return tmp_path_factory.mktemp("runs")


RUN = [page for page in PAGES if any(not block.reason for block in blocks(page.read_text()))]
OTHERS = (
    "performance", "benchmarks", "python", "README", "comparing", "methods", "command-line", "serve", "decisions",
)  # fmt: skip
LONG = [page for page in RUN if page in TUTORIALS or page.stem in OTHERS]
"""Those that ask for what the reference, the other pages and tests ask for as well, some of more samples."""


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore::UserWarning:mudata")
@pytest.mark.parametrize("page", [page for page in RUN if page not in LONG], ids=short)
@pytest.mark.usefixtures("desk", "hurry", "quick_map")
def test_code_blocks_run(page, runs):
    Reader(page, runs).follow(exact=False)


@pytest.mark.parametrize("page", LONG, ids=short)
@pytest.mark.usefixtures("desk")
def test_blocks_of_long_pages_can_be_read(page):
    """`-m slow` runs them."""
    Reader(page).glance()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore::UserWarning:mudata")
@pytest.mark.parametrize("page", RUN, ids=short)
@pytest.mark.usefixtures("desk")
def test_code_blocks_show_what_the_pages_say(page):
    Reader(page).follow(exact=True)


def test_few_blocks_do_not_run():
    """A reason is an exception: a page that collects them is not tested."""
    reasons = [block.reason for page in PAGES for block in blocks(page.read_text()) if block.reason]
    assert len(reasons) <= 16
    assert all(len(reason) > 5 for reason in reasons)


def paragraphs(text: str) -> list[str]:
    """Paragraphs and items of lists, each as one line."""
    words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", prose(text))  # of a link what is read
    parts = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", words)
    return [" ".join(part.split()) for part in parts if not part.lstrip().startswith(("|", "#", "<", "!["))]


def test_paragraphs_are_short():
    """Five lines of 120 characters."""
    for page in PAGES:
        assert [one for one in paragraphs(page.read_text()) if len(one) > 600] == [], short(page)


def test_tables_are_short():
    """Twelve rows."""
    for page in (ROOT / "README.md", *TUTORIALS):
        tables = re.findall(r"(?:^\|.*\n)+", page.read_text(), re.M)
        assert [table.splitlines()[0] for table in tables if len(table.splitlines()) > 2 + 12] == [], short(page)


def test_long_paragraphs_and_tables_would_be_noticed():
    assert [len(one) for one in paragraphs(f"# Title\n\nshort\n\n{'word ' * 130}\n")] == [5, 649]
    assert paragraphs("- one\n  more\n- two\n\n| a |\n") == ["- one more", "- two"]


REFERENCE = [*sorted((ROOT / "docs" / "reference").glob("*.md")), ROOT / "docs" / "faq-errors.md"]
SHOWN = {page.name: page.read_text() for page in REFERENCE}
CODE = "\n".join(block.text for text in SHOWN.values() for block in blocks(text) if block.language == "python")


def own_members(kind: type) -> list[str]:
    """Public methods and properties that a class of ours has from us, not from scikit-learn."""
    ours = [one for one in kind.__mro__ if one.__module__.startswith("viewfuse")]
    found = {name: value for one in ours for name, value in vars(one).items() if not name.startswith("_")}
    return sorted(
        name for name, value in found.items() if callable(value) or isinstance(value, (property, classmethod))
    )


def public_names() -> list[str]:
    """All public names, each as the path that a directive of the reference has to end with."""
    import viewfuse
    from viewfuse import baselines, errors, metrics, missing
    from viewfuse.comparison.ranks import Ranks
    from viewfuse.comparison.results import Comparison
    from viewfuse.fitted.explanation import Explanation
    from viewfuse.methods import __all__ as methods

    names = [f"viewfuse.{name}" for name in viewfuse.__all__]
    names += [f"viewfuse.methods.{name}" for name in methods if name != "URRL"]
    for module in (baselines, errors, metrics, missing):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        names += [f"{module.__name__}.{name}" for name in own if not name.startswith("_")]
    for kind in (viewfuse.URRL, viewfuse.Views, Explanation, Comparison, Ranks):
        names += [f"{kind.__name__}.{name}" for name in own_members(kind)]
    return [*names, "viewfuse.datasets.load_handwritten"]


def documented() -> str:
    """All names in directives of the reference, one per line, members behind their class."""
    found = []
    for kind, name, members in re.findall(
        r"^\.\. auto(\w+):: (\S+)(?:\n   :members: ?(.*))?", "\n".join(SHOWN.values()), re.M
    ):
        listed = re.split(r", ", members) if members else []
        found += [name, *(f"{name}.{member}" for member in listed)]
        if kind == "module" and name == "viewfuse.errors":
            found += [f"{name}.{one}" for one in re.findall(r"^### (\w+)", SHOWN["faq-errors.md"], re.M)]
            found += [f"viewfuse.{one}" for one in re.findall(r"^### (\w+)", SHOWN["faq-errors.md"], re.M)]
    return "\n".join(found) + "\n"


def test_every_public_name_is_in_the_reference_with_an_example():
    there, names = documented(), public_names()
    assert len(names) >= 90
    assert [path for path in names if f"{path}\n" not in there] == []
    assert [path for path in names if not re.search(rf"\b{path.split('.')[-1]}\b", CODE)] == []


def test_docstrings_become_lists_of_definitions():
    """Words that go on in the next line stay together; a type stands beside its name."""
    namespace = {"__name__": "docstrings"}
    exec(compile((ROOT / "docs" / "docstrings.py").read_text(), "docstrings.py", "exec"), namespace)
    lines = """First.

Parameters
----------
size : rows at a time;
    all by default
kind : str, optional
    Either way.

Returns
-------
What was given.
""".splitlines()
    namespace["convert"](None, None, None, None, None, lines)
    text = "\n".join(lines)
    assert "    **size**\n        rows at a time;\n        all by default\n" in text
    assert "    **kind** : str, optional\n        Either way.\n" in text
    assert ":Returns:\n    What was given." in text


def test_figures_are_those_that_the_script_draws(tmp_path):
    namespace = {"__file__": str(tmp_path / "draw.py"), "__name__": "draw"}
    folder = ROOT / "docs" / "figures"
    exec(compile((folder / "draw.py").read_text(), "draw.py", "exec"), namespace)
    namespace["main"]()
    for figure in ("data.svg", "network.svg"):
        assert (tmp_path / figure).read_text() == (folder / figure).read_text(), "run python docs/figures/draw.py"


def test_the_tables_of_the_tutorials_are_those_that_the_script_writes(tmp_path):
    namespace = {"__file__": str(tmp_path / "make_data.py"), "__name__": "make_data"}
    exec(compile((DATA / "make_data.py").read_text(), "make_data.py", "exec"), namespace)
    namespace["main"]()
    for table in DATA.glob("*.csv"):
        assert (tmp_path / table.name).read_text() == table.read_text()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    """What `make docs` does: a link or a name that leads nowhere is a warning, and warnings are errors."""
    pytest.importorskip("sphinx", reason="needs the packages of the extra docs")
    command = re.search(r"^docs:.*\n\t\$\(PY\) (.*)$", (ROOT / "Makefile").read_text(), re.M).group(1)
    words = command.replace("build/", f"{tmp_path}/").split()
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {"index.html", "docs", "results"} <= {path.name for path in (tmp_path / "docs").iterdir()}


def test_commands_in_sentences_exist():
    """`viewfuse verb --option` between backticks: the verb and the option are there."""
    from viewfuse.cli import main

    wrong = []
    for page in PAGES:
        for text in re.findall(r"`viewfuse ([a-z][^`]*)`", page.read_text()):
            verb, *words = text.split()
            command = main.get_command(click.Context(main), verb)
            known = options_of(command) if command else set()
            wrong += [f"{short(page)}: {text}" for word in words if word.startswith("--") and word not in known]
            wrong += [] if command else [f"{short(page)}: {text}"]
    assert wrong == []


def test_names_in_sentences_about_methods_exist():
    """`thing.name` between backticks on the page for methods of one's own."""
    import numpy as np
    import torch

    import viewfuse
    from viewfuse.engine.training import Training, TrainState
    from viewfuse.methods.network import ClusterNetwork
    from viewfuse.neighbors.index import Samples

    samples = Samples([torch.zeros(2, 1)], torch.ones(2, 1, dtype=torch.bool), torch.empty(2, 1, 0))
    training = Training([TrainState(torch.nn.Linear(1, 1), samples, 0)])
    known = {"viewfuse": viewfuse, "X": viewfuse.Views([np.eye(2)]), "network": ClusterNetwork, "training": training}
    page = (ROOT / "docs" / "add-your-method.md").read_text()
    names = re.findall(r"`((?:viewfuse|X|network|training)(?:\.\w+)+)", page)
    assert {"viewfuse.nn.dense.MLP", "training.random", "network.remember", "X.mask"} <= set(names)
    for name in names:
        first, *others = name.split(".")
        assert hasattr(reduce(getattr, others[:-1], known[first]), others[-1]), name


def options_of(command: click.Command) -> set[str]:
    """Options of a verb and of the verbs below it."""
    below = [command.get_command(click.Context(command), name) for name in getattr(command, "commands", ())]
    own = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help"}
    return own.union(*(options_of(one) for one in below))
