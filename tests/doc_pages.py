"""The pages of the documentation: their code blocks, and how these are run as a reader would."""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import click
import numpy as np
import pandas as pd
from click.testing import CliRunner

from asgi_client import Client

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
DATA = ROOT / "docs" / "tutorials" / "data"
"""The tables that readers are told to have."""
KINDS = {
    "python": "python",
    "sh": "shell",
    "json": "json",
    "toml": "toml",
    "text": "text",
    "bibtex": "",
    "latex": "",
    "yaml": "",
}
"""What is done with blocks of a language; a block of another one, or of none, is a mistake."""
_FENCE = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1[ ]*$", re.M | re.S)
_REASON = re.compile(r"<!-- not run: ([^>]+) -->\s*\Z")
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Block(NamedTuple):
    """One fenced block; `reason` says why it is not run, and is empty where it is."""

    language: str
    text: str
    line: int
    reason: str


def blocks(text: str) -> list[Block]:
    """All fenced blocks of a page that are not directives of Sphinx."""
    found = []
    for match in _FENCE.finditer(text):
        reason = _REASON.search(text, 0, match.start())
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[2].strip(), match[3], line, reason[1] if reason else ""))
    return [block for block in found if not block.language.startswith("{")]


def prose(text: str) -> str:
    """A page without its blocks."""
    return _FENCE.sub("", text)


def commands(block: str) -> list[list[str]]:
    """The words of every command line; comments are left out."""
    lines = re.sub(r"\\\n", " ", block)
    if "'{" in lines:  # JSON over several lines
        return [shlex.split(lines, comments=True)]
    return [words for line in lines.splitlines() if (words := shlex.split(line, comments=True))]


class Reader:
    """Somebody who types in one page, block by block, in a folder with the tables."""

    def __init__(self, page: Path, runs: Path | None = None) -> None:
        """`runs` is a folder that keeps what fits of the same tables wrote, for other pages."""
        self.page, self.runs, self.scope, self.shown = page, runs, {"__name__": "__main__"}, ""

    def follow(self, *, exact: bool) -> None:
        """Run the page; with `exact`, what it prints is what the page shows, numbers apart."""
        for block in blocks(self.page.read_text()):
            kind = KINDS[block.language]
            try:
                if kind == "text":
                    self.compare(block, exact=exact)
                elif block.reason:
                    self.look(block)
                elif kind:
                    getattr(self, kind)(block)
            except Exception as error:
                error.add_note(f"{self.page.relative_to(ROOT)}, line {block.line}")
                raise

    def python(self, block: Block) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            if block.text.startswith(">>>"):
                self.session(block)
            else:
                exec(compile("\n" * (block.line - 1) + block.text, str(self.page), "exec"), self.scope)
        self.shown = out.getvalue()

    def session(self, block: Block) -> None:
        """Lines with >>> and what they answer."""
        test = doctest.DocTestParser().get_doctest(block.text, self.scope, self.page.name, None, block.line)
        test.globs = self.scope  # a copy would forget what the block defines
        runner = doctest.DocTestRunner(verbose=False, optionflags=_LOOSE)
        report: list[str] = []
        assert not runner.run(test, out=report.append, clear_globs=False).failed, "".join(report)

    def shell(self, block: Block) -> None:
        self.shown = ""
        programs = {"viewfuse": self.viewfuse, "make": made, "pip": installed, "curl": asked}
        for program, *words in commands(block.text):
            self.shown += programs[program](words)

    def viewfuse(self, words: list[str]) -> str:
        """A verb; a fit that another page has asked for is not done again."""
        if self.runs is None or words[:3] != ["fit", "rna.csv", "protein.csv"]:
            return viewfuse(words)
        kept, out = self.runs / "_".join(words), words[words.index("--out") + 1]
        if not kept.exists():
            viewfuse(words)
            shutil.copytree(out, kept)
        shutil.copytree(kept, out, dirs_exist_ok=True)
        return ""

    def look(self, block: Block) -> None:
        """What is not run: commands of viewfuse have to be such that they would."""
        for program, *words in commands(block.text) if block.language == "sh" else ():
            if program == "viewfuse":
                parsed(words)

    def glance(self) -> None:
        """Run nothing: every block can be read, all that it imports is there, and so are commands and their options."""
        for block in blocks(self.page.read_text()):
            if block.language == "sh":
                self.look(block)
            elif block.language == "python" and not block.text.startswith(">>>"):
                found = ast.parse(block.text).body
                imports = (
                    [] if block.reason else [one for one in found if isinstance(one, (ast.Import, ast.ImportFrom))]
                )
                exec(compile(ast.Module(imports, []), str(self.page), "exec"), self.scope)

    def json(self, block: Block) -> None:
        """What a service answers has the same keys."""
        assert json.loads(block.text).keys() == json.loads(self.shown).keys()

    def toml(self, block: Block) -> None:
        tomllib.loads(block.text)

    def compare(self, block: Block, *, exact: bool) -> None:
        if exact and not block.reason:
            wanted, got = _without_numbers(block.text), _without_numbers(self.shown)
            assert doctest.OutputChecker().check_output(wanted, got, _LOOSE), f"shown: {block.text}\nis: {self.shown}"


def _without_numbers(text: str) -> str:
    return re.sub(r"-?\d[\d.,]*\d|\d", "#", re.sub(r"-{2,}", "-", text)).rstrip() + "\n"


def viewfuse(words: list[str]) -> str:
    from viewfuse.cli import main

    result = CliRunner().invoke(main, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def parsed(words: list[str]) -> None:
    """The verb and its options exist; nothing is done."""
    from viewfuse.cli import main

    verb, *rest = words
    command = main.get_command(click.Context(main), verb)
    if isinstance(command, click.Group):
        command, rest = command.get_command(click.Context(command), rest[0]), rest[1:]
    command.make_context(verb, rest)


def asked(words: list[str]) -> str:
    """A request to a service with a model of two views of two and three columns."""
    from viewfuse import URRL, Config
    from viewfuse.serve.app import create_app
    from viewfuse.serve.inference import open_folder

    drawn = np.random.default_rng(0)
    views = {
        "rna": pd.DataFrame(drawn.normal(size=(20, 2)), columns=["gene1", "gene2"]),
        "protein": drawn.normal(size=(20, 3)),
    }
    URRL(3, config=Config(pretrain_epochs=1, joint_epochs=0), scaling="standard", random_state=0).fit(views).save(
        "served"
    )
    answer = Client(create_app(open_folder(Path("served"), "cpu"))).post(
        urlsplit(words[0]).path, words[words.index("-d") + 1].encode()
    )
    assert answer.status == 200, answer.body
    return answer.body.decode()


def made(words: list[str]) -> str:
    """What `make` would do is tested elsewhere: here the target has to exist."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert words[0] in targets, words
    return ""


def installed(words: list[str]) -> str:
    """Nothing is installed: the extras have to exist."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = re.findall(r"\[([\w,]+)\]", words[-1])
    assert words[0] == "install"
    assert {name for one in asked for name in one.split(",")} <= set(extras), words
    return ""
