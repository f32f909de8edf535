"""Draw the figures of how-it-works.md: `python docs/figures/draw.py` writes data.svg and network.svg beside it.

All words stand on light shapes and all lines are grey, so that the pictures can be read on white and on black.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

HERE = Path(__file__).parent
VIEWS = {"rna": "#8ec3ea", "protein": "#f5c07a", "image": "#8fd3ab"}
PALE = {"rna": "#d5e9f8", "protein": "#fce8cb", "image": "#d4efde"}
GROUPS = ("#b79be0", "#ef9db5", "#d9cf6b")
INK, LINE, PAPER, WHITE = "#17202a", "#7d8793", "#e8ecf0", "#ffffff"
MISSING = {"rna": {4}, "protein": {1, 2}, "image": {0, 4, 5}}
"""Which of six samples lack which view."""


class Drawing:
    """Shapes, one after the other, as SVG."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(title)}" font-family="system-ui, sans-serif" font-size="15">',
            f"<title>{escape(title)}</title><desc>{escape(description)}</desc>",
            f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
        ]

    def box(self, x: float, y: float, w: float, h: float, fill: str, words: str = "", *, dashed: bool = False) -> None:
        """A rectangle with up to a few lines of words in its middle; the first line is the bold one."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="6" fill="{fill}" stroke="{LINE}"{dash}/>'
        )
        lines = words.split("\n") if words else []
        for number, line in enumerate(lines):
            self.text(x + w / 2, y + h / 2 + 20 * (number - (len(lines) - 1) / 2), line, bold=number == 0)

    def text(self, x: float, y: float, words: str, *, bold: bool = False, size: int = 0) -> None:
        """One line of words around (x, y)."""
        weight = ' font-weight="600"' if bold else ' font-size="14"'
        weight = f' font-size="{size}"' if size else weight
        self.parts.append(
            f'<text x="{x}" y="{y}" fill="{INK}" text-anchor="middle" dominant-baseline="central"{weight}>'
            f"{escape(words)}</text>"
        )

    def arrow(self, *places: tuple[float, float]) -> None:
        """A line through the places, with a tip at its end."""
        way = " ".join(f"{x},{y}" for x, y in places)
        self.parts.append(
            f'<polyline points="{way}" fill="none" stroke="{LINE}" stroke-width="2" marker-end="url(#tip)"/>'
        )

    def label(self, x: float, y: float, words: str, width: float) -> None:
        """Words on a light pill."""
        self.parts.append(
            f'<rect x="{x - width / 2}" y="{y - 13}" width="{width}" height="26" rx="13" fill="{PAPER}"/>'
        )
        self.text(x, y, words)

    def table(self, x: float, y: float, name: str, *, filled: bool) -> None:
        """Six samples in four columns; those that lack the view are empty, or pale where a donor stands in."""
        self.box(x, y - 32, 120, 26, VIEWS[name], name)
        for row in range(6):
            there = row not in MISSING[name]
            fill = VIEWS[name] if there else PALE[name] if filled else "none"
            for column in range(4):
                dash = "" if there else ' stroke-dasharray="3 2"'
                self.parts.append(
                    f'<rect x="{x + 30 * column}" y="{y + 14 * row}" width="29" height="13" fill="{fill}" '
                    f'stroke="{LINE}" stroke-width=".7"{dash}/>'
                )

    def write(self, name: str) -> None:
        """Write the picture beside this script."""
        (HERE / name).write_text("\n".join([*self.parts, "</svg>\n"]))


def data_way() -> Drawing:
    """From tables to answers."""
    d = Drawing(
        640, 690, "The way of the data",
        "Three tables with missing rows are joined and scaled; nearest samples stand in for missing rows; a network "
        "makes one embedding per sample; clusters and answers come from the embedding.",
    )  # fmt: skip
    for number, name in enumerate(VIEWS):
        d.table(60 + 200 * number, 44, name, filled=False)
        d.arrow((120 + 200 * number, 134), (120 + 200 * number, 190))
        d.table(60 + 200 * number, 234, name, filled=True)
        d.arrow((120 + 200 * number, 324), (120 + 200 * number, 372))
    d.label(320, 160, "joined by id, checked, empty cells filled, reduced, scaled", 420)
    d.label(320, 346, "nearest samples stand in for missing views", 330)
    d.box(60, 376, 520, 44, PAPER, "network")
    d.arrow((320, 420), (320, 446))
    for row, group in enumerate((0, 0, 1, 1, 2, 2)):
        for column in range(8):
            d.parts.append(
                f'<rect x="{200 + 30 * column}" y="{450 + 14 * row}" width="29" height="13" fill="{GROUPS[group]}" '
                f'stroke="{LINE}" stroke-width=".7"/>'
            )
    d.label(520, 477, "one embedding", 130)
    d.label(520, 507, "per sample", 100)
    d.label(100, 477, "clusters", 100)
    d.label(100, 507, "and centres", 110)
    for number, (answer, what) in enumerate(
        {"labels": "confidence", "predict": "new samples", "impute": "missing views", "explain": "report"}.items()
    ):
        x = 20 + 154 * number
        d.arrow((320, 536), (320, 562), (x + 69, 562), (x + 69, 596))
        d.box(x, 600, 138, 56, WHITE, f"{answer}\n{what}")
    return d


def network() -> Drawing:
    """From the neighbour lists of one sample to its embedding, and back."""
    d = Drawing(
        640, 770, "The network",
        "For each view a list of four neighbours goes through a neighbour encoder. A view encoder with a mask of three "
        "levels makes one embedding of all views. In training the same sample goes through it twice, the second time "
        "with views dropped. Decoders rebuild the views, centres give the clusters, both embeddings stay close.",
    )  # fmt: skip
    states = {"rna": "the sample has it", "protein": "filled by donors", "image": "nothing known"}
    for number, (name, state) in enumerate(states.items()):
        x = 30 + 200 * number
        there = name != "image"
        d.box(x, 8, 180, 46, VIEWS[name] if name == "rna" else PALE[name], f"{name}\n{state}", dashed=name != "rna")
        for k in range(4):
            d.box(
                x + 47 * k, 70, 39, 34, (VIEWS if name == "rna" else PALE)[name] if there else "none", dashed=not there
            )
            if there:
                d.text(x + 47 * k + 20, 88, f"x{'₁₂₃₄'[k]}", size=15)
        d.arrow((x + 90, 108), (x + 90, 136))
        d.box(x, 140, 180, 50, PAPER, "neighbour encoder\nTransformer, k tokens")
        d.arrow((x + 90, 190), (x + 90, 262))
        d.label(x + 90, 222, ("bias 0", "bias γ", "bias −∞")[number], 80)
    d.box(30, 266, 580, 50, PAPER, "view encoder\nTransformer, one token per view, mask of three levels")
    d.arrow((120, 316), (120, 352))
    d.arrow((420, 316), (420, 352))
    d.box(30, 356, 180, 50, GROUPS[0], "embedding z\nthe sample as it is")
    d.box(230, 356, 380, 50, GROUPS[0], "embedding z′ of the same sample\nin training: some views dropped, noise added")
    d.arrow((320, 406), (320, 442))
    d.arrow((520, 406), (520, 442))
    d.box(230, 446, 180, 50, PAPER, "decoders\none per view")
    d.box(430, 446, 180, 50, PAPER, "centres\nStudent-t distance")
    d.arrow((320, 496), (320, 526))
    d.arrow((520, 496), (520, 526))
    for number, (name, color) in enumerate(zip(VIEWS, GROUPS, strict=True)):
        d.box(230 + 62 * number, 530, 56, 40, VIEWS[name])
        d.text(258 + 62 * number, 550, "x̂", size=18)
        d.box(430 + 62 * number, 530, 56, 40, color)
        d.text(458 + 62 * number, 550, f"q{'₁₂₃'[number]}", size=16)
    d.arrow((90, 406), (90, 606))
    d.arrow((250, 406), (250, 426), (150, 426), (150, 606))
    d.arrow((320, 570), (320, 606))
    d.arrow((520, 570), (520, 606))
    d.box(30, 610, 180, 66, GROUPS[1], "robustness\nz′ is closer to its own z\nthan to any other")
    d.box(230, 610, 180, 66, GROUPS[1], "reconstruction\nx̂ is x, in views\nthat the sample has")
    d.box(430, 610, 180, 66, GROUPS[1], "clustering\nsure samples\nbecome surer")
    for x in (120, 320, 520):
        d.arrow((x, 676), (x, 702), (320, 702), (320, 722))
    d.label(320, 740, "weighted sum: the loss", 200)
    return d


def main() -> None:
    """Draw both."""
    data_way().write("data.svg")
    network().write("network.svg")


if __name__ == "__main__":
    main()
