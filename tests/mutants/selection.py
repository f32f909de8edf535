"""Which tests run a line: one run of all fast tests under coverage.py, kept until the code or the tests change."""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Any

from mutants.defects import PACKAGE, ROOT
from mutants.mutations import Mutant
from mutants.runner import Job, run_all

CACHE = ROOT / "build" / "mutants"
ELSEWHERE = {
    "io/": "io/isolated/client.py",
    "utils/jobs": "utils/jobs.py",
    "distributed/": "distributed/processes.py",
}
"""Packages that other processes run as well, unseen by coverage.py, and the module that starts these."""


class Selection:
    """The tests of each line, and how long they take.

    Parameters
    ----------
    data : what coverage.py found out
    seconds : of each test that passes on sound code
    """

    def __init__(self, data: Any, seconds: dict[str, float]) -> None:
        self.seconds = seconds
        self._tests_by_line = cache(lambda file: data.contexts_by_lineno(f"{PACKAGE}/{file}"))
        self._words = _words_by_function()
        counts = Counter(word for words in self._words.values() for word in words)
        self._rarity = {word: log(len(self._words) / count) for word, count in counts.items()}
        self._texts = {path.relative_to(ROOT / PACKAGE).as_posix(): path.read_text() for path in _sources()}

    def of_lines(self, file: str, lines: Iterable[int]) -> set[str]:
        """The tests that run one of the lines."""
        by_line = self._tests_by_line(file)
        return {test for line in lines for test in by_line.get(line, ()) if test in self.seconds}

    def of_mutant(self, mutant: Mutant) -> set[str]:
        """The tests that can notice it."""
        place = mutant.place
        found = self.of_names(place.names) if place.is_import else set()
        first, last = place.lines
        found = found or self.of_lines(mutant.file, range(first, last + 1))
        for package, starter in ELSEWHERE.items():
            if mutant.file.startswith(package):
                found |= self.of_module(starter)
        return found or self.of_module(mutant.file)

    def of_names(self, names: Sequence[str]) -> set[str]:
        """The tests that run a line on which one of the names stands, and those that name it themselves."""
        if not names:
            return set()
        pattern = re.compile(rf"\b({'|'.join(names)})\b")
        found = set[str]()
        for file, text in self._texts.items():
            numbers = [number for number, line in enumerate(text.splitlines(), 1) if pattern.search(line)]
            found |= self.of_lines(file, numbers)
        spoken = {name.lower().strip("_") for name in names}
        return found | {test for test in self.seconds if spoken & self._words[_function(test)]}

    def of_module(self, file: str) -> set[str]:
        """The tests that run anything of a module; where only other processes do, those whose file names it."""
        if found := self.of_lines(file, self._tests_by_line(file)):
            return found
        name = file.removesuffix(".py").removesuffix("/__init__").rpartition("/")[2]
        files = {
            path.name for path in (ROOT / "tests").glob("test_*.py") if re.search(rf"\b{name}\b", path.read_text())
        }
        return self.of_files(files)

    def of_files(self, names: Collection[str]) -> set[str]:
        """All tests of files inside of the folder of the tests, or those of one function."""
        return {test for test in self.seconds if _file(test) in names or _function(test)[6:] in names}

    def ordered(self, tests: Collection[str], about: str, most: float) -> tuple[str, ...]:
        """Those that speak most of the same things per second come first, and file by file; `most` seconds in all.

        Parameters
        ----------
        about : text of the change; what else is in the files of the tests follows where there is time
        """
        others = self.of_files({_file(test) for test in tests}) - set(tests)
        found = [*self._by_worth(tests, about), *self._by_worth(others, about)]
        ends = accumulate(self.seconds[test] for test in found)
        taken = [test for test, end in zip(found, ends, strict=True) if end <= most] or found[:1]
        # Fixtures of a module are made once where its tests run together.
        place = {name: i for i, name in reversed(list(enumerate(map(_file, taken))))}
        return tuple(sorted(taken, key=lambda test: place[_file(test)]))

    def _by_worth(self, tests: Collection[str], about: str) -> list[str]:
        own = _words(about)

        def worth(test: str) -> float:
            shared = sum(self._rarity[word] for word in own & self._words[_function(test)])
            return (1 + shared) / (0.1 + self.seconds[test])

        return sorted(tests, key=lambda test: (-worth(test), test))


def _words(text: str) -> set[str]:
    """The names in a text, and their parts."""
    names = set(re.findall(r"[a-z][a-z_]+", text.lower()))
    return names | {part for name in names for part in name.split("_") if len(part) > 2}


def _function(test: str) -> str:
    return test.partition("[")[0]


def _words_by_function() -> dict[str, set[str]]:
    """The words of each test, those of its file's name among them."""
    found = {}
    for path in _test_files():
        text = path.read_text(encoding="utf-8")
        for name, node in _functions(ast.parse(text).body):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            found[f"tests/{path.name}::{name}"] = _words("\n".join([path.stem, *lines]))
    return found


def _functions(body: Sequence[ast.stmt], before: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions, and those of classes, with the names that pytest gives them."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield before + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node.body, f"{before}{node.name}::")


def _file(test: str) -> str:
    return test.partition("::")[0].removeprefix("tests/")


def _sources() -> list[Path]:
    return sorted((ROOT / PACKAGE).rglob("*.py"))


def _states(files: Sequence[Path]) -> list[str]:
    """Per file of tests what changes wherever it, the code or a helper does."""
    common = hashlib.sha256()
    helpers = [path for path in sorted((ROOT / "tests").glob("*.py")) if not path.name.startswith("test_")]
    for path in [*_sources(), *helpers]:
        common.update(path.read_bytes())
    return [hashlib.sha256(common.digest() + path.read_bytes()).hexdigest()[:16] for path in files]


def _test_files() -> list[Path]:
    """All but the one about mutants, which reads the code rather than runs it."""
    return [path for path in sorted((ROOT / "tests").glob("test_*.py")) if path.name != "test_mutants.py"]


def measured(trees: Sequence[Path]) -> Selection:
    """Run all fast tests once on sound code, or read what earlier runs of the same code found."""
    CACHE.mkdir(parents=True, exist_ok=True)
    files = _test_files()
    found = [CACHE / f"{file.stem}-{state}" for file, state in zip(files, _states(files), strict=True)]
    missing = [(file, path) for file, path in zip(files, found, strict=True) if not path.with_suffix(".json").exists()]
    jobs = [Job((f"tests/{file.name}",), limit=900.0, coverage=path) for file, path in missing]
    for number, outcome in run_all(jobs, trees):
        file, path = missing[number]
        print(f"{outcome.seconds:5.1f} s  {file.name} {outcome.by}", flush=True)
        path.with_suffix(".json").write_text(json.dumps(outcome.passed))
    seconds = [json.loads(path.with_suffix(".json").read_text()) for path in found]
    return Selection(_combined(found), {test: value for one in seconds for test, value in one.items()})


def _combined(parts: Sequence[Path]) -> Any:
    """What coverage.py found out about all files."""
    from coverage import CoverageData

    whole = CoverageData(no_disk=True)
    for part in parts:
        if part.exists():
            one = CoverageData(str(part))
            one.read()
            whole.update(one)
    return whole
