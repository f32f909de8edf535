"""The deliberate defects: where each is, what it breaks, and which tests belong to it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = Path("src") / "viewfuse"


class DefectGone(Exception):
    """A defect cannot be put into the code any more."""


@dataclass(frozen=True)
class Defect:
    """A change of a line or so.

    Attributes
    ----------
    file : inside of the package
    old, new : what stands there, exactly once, and what is put in its place
    breaks : what goes wrong
    tests : those that must notice, inside of the folder of the tests
    survives : why no test can notice; empty where one must
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    survives: str = ""

    @property
    def path(self) -> Path:
        """The file, from the root."""
        return PACKAGE / self.file

    def applied(self, text: str) -> str:
        """The content of the file with the defect."""
        count = text.count(self.old)
        if count != 1 or self.old == self.new:
            raise DefectGone(f"{self.file}: found {count} times instead of once ({self.breaks}): {self.old!r}")
        return text.replace(self.old, self.new)


def all_defects() -> list[Defect]:
    """Those of all lists beside this file."""
    found = []
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        entries = tomllib.loads(path.read_text(encoding="utf-8")).get("defect", [])
        found += [Defect(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    return found
