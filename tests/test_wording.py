"""The command line speaks of its own options, never of Python's parameters; and what it tells to install exists."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks.command import main as benchmarks
from test_explanation import run
from viewfuse import URRL, DataError, MissingPackage, read_views
from viewfuse.cli import fit, main
from viewfuse.cli.options import preparation, spelling
from viewfuse.errors import CannotWrite, EmptyClusterWarning, NotEnoughMemory, SettingError
from viewfuse.plots.pictures import drawing
from viewfuse.selection.decision_texts import records
from viewfuse.selection.decisions import ScalingChoice
from viewfuse.utils.console import needed
from viewfuse.utils.settings import Advice, Field, Setting, spelled

PARAMETERS = {*URRL().get_params(), *inspect.signature(read_views).parameters} - {"paths"}
LONG = re.compile(rf"\b(?:{'|'.join(sorted(name for name in PARAMETERS if '_' in name))})\b|=(?:'|True|False|None)")
BAD = {"imputed_bias": "5", "random_state": "-1", "n_clusters": "0", "device": "gpu", "reduction": "svd", "n_init": "0",
       "cluster_range": "5 1", "n_jobs": "0",
       "keep": "99", "embedding_dim": "10"}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, rna=np.random.default_rng(0).normal(size=(20, 3)))
    return path


SETTINGS = [one.name for one in fit.fit.params if one.name in {*URRL().get_params(), "keep"}]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_that_is_refused_is_called_by_its_option(file, tmp_path, monkeypatch, name):
    monkeypatch.setattr("viewfuse.methods.urrl.fit.pretrain", None)  # whatever is wrong is found before training
    option = next(one for one in fit.fit.params if one.name == name)
    clusters = [] if name == "n_clusters" else ["--clusters", 2]
    value = BAD.get(name, "-1" if option.type.name in ("integer", "float") else "nonsense")
    said = run("fit", file, *clusters, "--out", tmp_path / "run", option.opts[0], *value.split())
    assert (said.exit_code, len(said.output.splitlines())) == (2, 1), said.output
    assert said.output.startswith(f"viewfuse: {'' if name == 'device' else option.opts[0] + ' '}")
    assert not LONG.search(said.output)


@pytest.mark.parametrize(
    ("setting", "python", "option"),
    [
        (Field("joint_epochs", 0), "config=Config(joint_epochs=0)", "--joint-epochs 0"),
        (Setting("n_clusters", 3), "n_clusters=3", "--clusters 3"),
        (Setting("learning_rate"), "learning_rate", "--learning-rate"),
        (Field("learning_rate", 1e-05), "config=Config(learning_rate=1e-05)", "--learning-rate 1e-05"),
        (Setting("reduction", "auto"), "reduction='auto'", "--reduction auto"),
        (Setting("transpose", ["a", "my b"]), "transpose=['a', 'my b']", "--transpose a --transpose 'my b'"),
        (Setting("header", False), "header=False", "--no-header"),
        (Setting("header", True), "header=True", "--header"),
        (Setting("allow_disjoint", True), "allow_disjoint=True", "--allow-disjoint"),
        (Setting("blocks", {"a": "a_*", "b": "b"}), "blocks={'a': 'a_*', 'b': 'b'}", "--block 'a=a_*' --block b=b"),
        (Setting("blocks"), "blocks", "--block"),
        (Field("n_heads", 2), "config=Config(n_heads=2)", None),
    ],
)  # fmt: skip
def test_parameters_are_spelled_for_the_reader(setting, python, option):
    assert (str(setting), spelling(fit.fit)(setting)) == (python, option)


def test_messages_are_spelled_when_they_are_shown():
    error = DataError("a.csv: n_init=3 ", Setting("id_column"), Advice(("; ", Field("n_heads", 2), " helps")))
    assert str(error) == "a.csv: n_init=3 id_column; config=Config(n_heads=2) helps"
    assert spelled(error, spelling(fit.fit)) == "a.csv: n_init=3 --id-column"  # what users wrote stays
    assert spelled(error, spelling(click.Command("nothing"))) == "a.csv: n_init=3 id_column"
    assert spelled("plain text", spelling(fit.fit)) == "plain text"


@pytest.mark.parametrize("kind", [CannotWrite, NotEnoughMemory, SettingError, MissingPackage, EmptyClusterWarning])
def test_messages_in_parts_survive_copies_and_processes(kind):
    parts = ("use ", Setting("transpose", ["a"]), Advice((" or ", Setting("header"))))
    message = pickle.loads(pickle.dumps(kind(*parts)))
    assert (str(message), message.parts) == ("use transpose=['a'] or header", parts)


def test_decisions_are_shown_with_options():
    decided = records(ScalingChoice("mixed", {}, as_a_whole=[], diverged=[], asked=False, quick=True))
    summary = {"samples": 3, "decisions": decided, "remarks": [], "params": {}}
    assert "others were not tried (--effort quick)" in fit._in_short(summary)["scaling"]
    assert fit._in_short(summary | {"found_again": [0.9, 0.8]})["found_again"] == [0.9, 0.8]
    assert "found_again" not in fit._in_short(summary | {"found_again": [1.0]})


@pytest.mark.parametrize("command", [main, benchmarks])
def test_no_verb_shows_help(command):
    said = CliRunner().invoke(command, [])
    assert "Commands:" in said.output
    assert "viewfuse: " not in said.output


def test_benchmarks_are_elsewhere():
    said = CliRunner().invoke(main, ["bench", "table2"])
    assert said.exit_code == 2
    assert (
        said.output
        == "viewfuse: Benchmarks are not in the package; in a checkout, run python -m benchmarks; see main --help\n"
    )


@pytest.mark.parametrize("arguments", [["--nonsense"], ["nonsense"], ["fit", "--nonsense"], ["fit"]])
def test_wrong_usage_is_told_in_one_line(arguments):
    said = CliRunner().invoke(main, arguments)
    assert said.exit_code == 2
    (line,) = said.output.splitlines()
    assert re.fullmatch(r"viewfuse: (No such|Missing).*; see main.* --help", line)


@pytest.mark.parametrize(("verb", "words"), [("choose", ("--cluster-range", "5")), ("fit", ("--out",))])
def test_whose_option_lacks_a_value_is_said(verb, words):
    assert CliRunner().invoke(main, [verb, *words]).stderr.endswith(f"; see viewfuse {verb} --help\n")


def test_what_is_to_be_installed_is_an_extra_of_the_project(monkeypatch, tmp_path):
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    sources = "\n".join(path.read_text() for path in (Path(__file__).parents[1] / "src").rglob("*.py"))
    asked = re.findall(r"(?:needed|how_to_install)\([\"']([\w.-]+)[\"'], [\"'](\w+)[\"']", sources)
    assert len(asked) >= 6
    for package, extra in asked:
        wanted = " ".join(project["optional-dependencies"][extra])
        assert package.split(".")[0] in wanted or package == "h5py"  # anndata brings h5py along
    assert "pip install 'viewfuse[" not in sources
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match=r"; pip install pyarrow, or in a checkout .* pip install -e '\.\[io\]'$"):
        needed("pyarrow.parquet", "io", tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingPackage, match="pip install matplotlib, or"), drawing("maps"):
        pass


def test_repeatable_options_are_made_as_every_click_takes_them(monkeypatch):
    """Click before 8.3 refuses a default that is no list as soon as a verb is imported, so nobody can call the verb."""
    made = []
    plain = click.Option.__init__
    monkeypatch.setattr(click.Option, "__init__", lambda self, *a, **k: (made.append(k), plain(self, *a, **k))[1])
    command = click.command("x")(preparation(lambda reduction, **_: click.echo(reduction)))
    assert [one["default"] for one in made if one.get("multiple")] == [["auto"]]
    assert CliRunner().invoke(command, []).output == "auto\n"
    assert CliRunner().invoke(command, ["--reduction", "pca"]).output == "pca\n"
    assert CliRunner().invoke(command, ["--reduction", "a=pca", "--reduction", "b=none"]).output == (
        "{'a': 'pca', 'b': 'none'}\n"
    )


def test_options_that_are_collected_under_the_name_of_one_stay_in_its_place():
    """The summary of a run lists its parameters in the order of --help."""
    command = click.command("x")(preparation(lambda **given: click.echo(", ".join(given))))
    assert CliRunner().invoke(command, []).output == "scaling, fill, reduction\n"
