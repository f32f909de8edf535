"""Every small change of the code that a slip could make: other operators, constants, conditions, a statement less.

Why not a tool: cosmic-ray brings aiohttp, SQLAlchemy and GitPython, mutmut libcst and a terminal interface, and either
starts a test process of its own per mutant, which takes longer here than the tests.
"""

from __future__ import annotations

import ast
import random
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from mutants.defects import PACKAGE, ROOT

WORDING = (
    "selection/decision_texts.py",
    "errors.py",
    "cli/options.py",
)
"""Files that hold sentences and options of the command line."""
SPOKEN = frozenset({"warn", "echo", "secho", "print", "info", "debug", "Option", "option"})
"""Functions whose arguments are words for people."""
SWAPPED: dict[type[ast.AST], tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"), ast.NotIn: ("not in", "in"), ast.And: ("and", "or"), ast.Or: ("or", "and"),
    ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"), ast.FloorDiv: ("//", "/"),
    ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.LShift: ("<<", ">>"), ast.RShift: (">>", "<<"),
    ast.BitAnd: ("&", "|"), ast.BitOr: ("|", "&"), ast.BitXor: ("^", "&"),
}  # fmt: skip
NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
"""To swap one of them is to negate the whole comparison."""
UNRUN = ("TYPE_CHECKING", "__name__ == '__main__'")
UNNOTICED = frozenset({"strict", "device", "stacklevel"})
"""Named arguments that guard against what cannot happen, or matter on other devices only."""
LOOKS = frozenset(
    {"figsize", "fontsize", "rotation", "linewidth", "lw", "markersize", "alpha", "frameon", "pad", "dpi"}
)
"""Named arguments that say how a picture looks, not what it shows."""


@dataclass(frozen=True)
class Place:
    """Where the walk through a file is.

    Attributes
    ----------
    where : names of the class and the function
    lines : those whose tests can notice a change here
    names : what is set here where only an import runs the lines
    is_import : whether that is so
    """

    where: str = ""
    lines: tuple[int, int] = (0, 0)
    names: tuple[str, ...] = ()
    is_import: bool = True


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Attributes
    ----------
    file : inside of the package
    line : where it begins
    place : the function, and the lines that belong to it
    start, end : bytes that are replaced
    put : what comes in their place
    old, new : the changed lines without indentation, before and after
    """

    file: str
    line: int
    place: Place
    start: int
    end: int
    put: str
    old: str
    new: str

    @property
    def path(self) -> Path:
        """The file, from the root."""
        return PACKAGE / self.file

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What stays as it is where other lines of the file change."""
        return self.file, self.place.where, self.old, self.new

    def applied(self, text: str) -> str:
        """The content of the file with the change."""
        raw = text.encode()
        return (raw[: self.start] + self.put.encode() + raw[self.end :]).decode()


class Finder:
    """Finds the mutants of a file."""

    def __init__(self, file: str, text: str) -> None:
        self.file, self.raw = file, text.encode()
        self._begins = [0, *accumulate(len(line) for line in self.raw.splitlines(keepends=True))]

    def mutants(self) -> Iterator[Mutant]:
        """In the order of the file."""
        for place, start, end, put in self._walk(ast.parse(self.raw), Place()):
            first = self.raw.rfind(b"\n", 0, start) + 1
            last = (self.raw.find(b"\n", end) + 1 or len(self.raw) + 1) - 1
            old = self.raw[first:last].decode().strip()
            new = (self.raw[first:start] + put.encode() + self.raw[end:last]).decode().strip()
            yield Mutant(self.file, self.raw.count(b"\n", 0, start) + 1, place, start, end, put, old, new)

    def _span(self, node: Any) -> tuple[int, int]:
        begin = self._begins[node.lineno - 1] + node.col_offset
        return begin, self._begins[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self.raw[start:end].decode()

    def _walk(self, node: ast.AST, place: Place) -> Iterator[tuple[Place, int, int, str]]:
        if _is_unseen(node):
            return
        place = _entered(node, place)
        for start, end, put in self._changes(node):
            yield place, start, end, put
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and _called(node) in SPOKEN):
            return
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self._walk(child, place)

    def _changes(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        if isinstance(node, ast.BinOp):
            yield self._swapped(node.op, node.left, node.right)
        elif isinstance(node, ast.BoolOp):
            yield from (self._swapped(node.op, *pair) for pair in list(pairwise(node.values))[:1])
        elif isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for op, pair in zip(node.ops, pairwise(operands), strict=True):
                yield self._swapped(op, *pair)
        elif isinstance(node, ast.UnaryOp):
            yield (*self._span(node), f"({self._text(node.operand)})")
        elif isinstance(node, ast.Constant):
            yield from ((*self._span(node), put) for put in _other_constants(node.value))
        elif isinstance(node, ast.If | ast.IfExp) and not _is_negated_elsewhere(node.test):
            yield (*self._span(node.test), f"not ({self._text(node.test)})")
        elif isinstance(node, ast.Call):
            yield from self._without_keywords(node)
        elif isinstance(node, ast.Break | ast.Continue):
            yield (*self._span(node), "continue" if isinstance(node, ast.Break) else "break")
        elif _can_go(node):
            yield (*self._span(node), "pass")

    def _swapped(self, op: ast.AST, left: ast.AST, right: ast.AST) -> tuple[int, int, str]:
        """The operator between two operands, replaced; between them are at most brackets and blanks."""
        begin, end = self._span(left)[1], self._span(right)[0]
        old, new = SWAPPED.get(type(op), ("@", "*"))
        start = self.raw.index(old.split()[0].encode(), begin, end)
        return start, self.raw.index(old.split()[-1].encode(), start, end) + len(old.split()[-1]), new

    def _without_keywords(self, node: ast.Call) -> Iterator[tuple[int, int, str]]:
        """The call without one of its named arguments; those that are words stay."""
        for gone in node.keywords:
            if gone.arg and gone.arg not in UNNOTICED | LOOKS and not _is_text(gone.value):
                kept = [word for word in node.keywords if word is not gone]
                put = ast.unparse(ast.Call(node.func, node.args, kept))
                yield (*self._span(node), put)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_negated_elsewhere(node: ast.AST) -> bool:
    is_comparison = isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], NEGATED)
    return is_comparison or isinstance(node, ast.UnaryOp)


def _other_constants(value: object) -> list[str]:
    if isinstance(value, bool):
        return [str(not value)]
    others = [value + 1, value - 1] if isinstance(value, int | float) else []
    return [repr(one) if one >= 0 else f"({one!r})" for one in others]


def _called(node: ast.Call) -> str:
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _is_unseen(node: ast.AST) -> bool:
    """Whether a node is words, or nothing that a test could run."""
    if isinstance(node, ast.keyword):
        return node.arg in UNNOTICED | LOOKS
    is_text = isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom)
    return is_text or (isinstance(node, ast.If) and ast.unparse(node.test) in UNRUN)


def _can_go(node: ast.AST) -> bool:
    """Whether a statement can be left out without an unknown name right after it."""
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Attribute | ast.Subscript)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call or isinstance(node, ast.AugAssign | ast.Raise | ast.Delete)


def _last_line(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _entered(node: ast.AST, place: Place) -> Place:
    """The place of what is inside of a node."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        where = f"{place.where}.{node.name}".removeprefix(".")
        # An import sets the defaults of a function; the tests that call it can notice.
        return Place(where, (node.body[0].lineno, _last_line(node)), (), isinstance(node, ast.ClassDef))
    if not isinstance(node, ast.stmt):
        return place
    body = getattr(node, "body", None)
    lines = (node.lineno, max(node.lineno, body[0].lineno - 1) if body else _last_line(node))
    targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
    names = [one.id for target in targets if target for one in ast.walk(target) if isinstance(one, ast.Name)]
    return replace(place, lines=lines, names=tuple(names) if place.is_import else ())


def all_mutants() -> list[Mutant]:
    """Those of the whole package but what is wording."""
    folder = ROOT / PACKAGE
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    return [one for file in files if file not in WORDING for one in Finder(file, (folder / file).read_text()).mutants()]


def drawn(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """So many of them, at random."""
    return random.Random(seed).sample(mutants, count)


def equivalents() -> dict[tuple[str, str, str, str], str]:
    """Why no test can notice a mutant, by its key: a list kept by hand."""
    entries = tomllib.loads((Path(__file__).parent / "equivalent.toml").read_text(encoding="utf-8"))["equivalent"]
    return {(one["file"], one["where"], one["old"], one["new"]): one["reason"] for one in entries}
