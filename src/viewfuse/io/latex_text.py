"""Tables as LaTeX, for the package booktabs."""

from __future__ import annotations

import re
from collections.abc import Sequence

_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "_": r"\_", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "<": r"$<$", ">": r"$>$",
    "\N{MINUS SIGN}": r"$-$",
}  # fmt: skip
_ANY_SPECIAL = re.compile("|".join(map(re.escape, _SPECIAL)))
_NUMBER = re.compile(r"[-+\u2212]?[\d.,]+( ± [\d.]+)?|-|")


def as_latex(header: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    """A tabular; columns of numbers are aligned at the right, and the title is a comment."""
    numbers = [all(_NUMBER.fullmatch(row[c]) for row in rows) for c in range(len(header))]
    layout = "".join("r" if is_number else "l" for is_number in numbers)
    lines = [" & ".join(map(escaped, row)) + r" \\" for row in (header, *rows)]
    comment = " ".join(title.split())
    return "\n".join([
        f"% {comment}", rf"\begin{{tabular}}{{{layout}}}", r"\toprule", lines[0], r"\midrule", *lines[1:],
        r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip


def escaped(text: str) -> str:
    """Text in which LaTeX sees no commands; control characters, which it refuses, are blanks."""
    plain = "".join(sign if sign.isprintable() else " " for sign in text)
    return _ANY_SPECIAL.sub(lambda found: _SPECIAL[found[0]], plain)
