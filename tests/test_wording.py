"""The command line speaks of its own options, never of Python's parameters; and what it tells to install exists."""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from test_explanation import run
from viewfuse import URRL, MissingPackage, read_views
from viewfuse.cli import fit, main
from viewfuse.cli.options import PerView
from viewfuse.plots.canvas import drawing
from viewfuse.selection.decisions import Reliability
from viewfuse.selection.messages import records
from viewfuse.utils.optional import needed
from viewfuse.utils.wording import in_options

PARAMETERS = {*URRL().get_params(), *inspect.signature(read_views).parameters} - {"paths"}
LONG = re.compile(rf"\b(?:{'|'.join(sorted(name for name in PARAMETERS if '_' in name))})\b|=(?:'|True|False|None)")
BAD = {"imputed_bias": "5", "random_state": "-1", "n_clusters": "0", "device": "gpu", "reduction": "svd", "n_init": "0",
       "cluster_range": "5 1",
       "keep": "99", "embedding_dim": "10"}  # fmt: skip


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, rna=np.random.default_rng(0).normal(size=(20, 3)))
    return path


SETTINGS = [one.name for one in fit.command.params if one.name in {*URRL().get_params(), "keep"}]


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_that_is_refused_is_called_by_its_option(file, tmp_path, monkeypatch, name):
    monkeypatch.setattr("viewfuse.methods.urrl.fit.pretrain", None)  # whatever is wrong is found before training
    option = next(one for one in fit.command.params if one.name == name)
    clusters = [] if name == "n_clusters" else ["--clusters", 2]
    value = BAD.get(name, "-1" if option.type.name in ("integer", "float") else "nonsense")
    said = run("fit", file, *clusters, "--out", tmp_path / "run", option.opts[0], *value.split())
    assert (said.exit_code, len(said.output.splitlines())) == (2, 1), said.output
    assert said.output.startswith(f"viewfuse: {'' if name == 'device' else option.opts[0] + ' '}")
    assert not LONG.search(said.output)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("try joint_epochs=0, or n_init=3", "try --joint-epochs 0, or --n-init 3"),
        ("say transpose=['rna', 'my view']; or not", "say --transpose rna --transpose 'my view'; or not"),
        ("header=False reads it, header=True does not", "--no-header reads it, --header does not"),
        ("allow_disjoint=True.", "--allow-disjoint."),
        ("blocks={'a': 'a_*', 'b': 'b'} takes", "--block 'a=a_*' --block b=b takes"),
        ("use reduction='auto', or fewer", "use --reduction auto, or fewer"),
        (
            "learning_rate must be 0.5; got learning_rate=1e-05",
            "--learning-rate must be 0.5; got --learning-rate 1e-05",
        ),
        ("a.csv: blocks names no view; name id_column", "a.csv: --block names no view; name --id-column"),
        ("reduction names the view 'scaling'", "--reduction names the view 'scaling'"),
        (
            "/data/n_init/batch_size.csv, column 'batch_size': no",
            "/data/n_init/batch_size.csv, column 'batch_size': no",
        ),
        ("noise: only 3 of its samples; use the scaling", "noise: only 3 of its samples; use the scaling"),
    ],
)
def test_parameters_become_options_and_names_of_others_stay(sentence, words):
    assert in_options(sentence, fit.command) == words


def test_without_a_command_a_sentence_stays():
    assert in_options("id_column has no meaning", None) == "id_column has no meaning"
    assert in_options("n_init=3", click.Command("nothing")) == "n_init=3"


def test_decisions_are_told_with_options():
    decided = records(Reliability("doubtful", {"agreement": 0.1}, trainings=1, final=True, alone=True))
    summary = {"samples": 3, "decisions": decided, "remarks": [], "params": {}}
    assert "; --effort thorough trains more networks" in fit._in_short(summary)["reliability"]


@pytest.mark.parametrize("arguments", [[], ["bench"]])
def test_no_verb_shows_help(arguments):
    said = CliRunner().invoke(main, arguments)
    assert "Commands:" in said.output
    assert "viewfuse: " not in said.output


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
    option = PerView(["--how"], multiple=True, default="auto")
    assert isinstance(made[0]["default"], list)
    command = click.Command("x", params=[option], callback=lambda how: click.echo(how))
    assert CliRunner().invoke(command, []).output == "auto\n"
    assert CliRunner().invoke(command, ["--how", "pca"]).output == "pca\n"
