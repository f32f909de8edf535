"""The README is short, its figures are those of `results`, and links between documents lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "results").rglob("*.md"),
]
DATA = {
    "TCGA-BRCA": "tcga_brca150", "Caltech, re-extracted": "caltech7x200_reextracted", "Handwritten": "handwritten",
    "BDGP": "bdgp", "ProteinFold": "proteinfold", "Reuters": "reuters1200", "CITE-seq": "citeseq_inhouse1182",
    "LandUse21": "landuse21", "NGs": "ngs", "3Sources": "3sources", "Prokaryotic": "prokaryotic",
}  # fmt: skip


def runs() -> pd.DataFrame:
    """Accuracy of every run with half of the samples incomplete; views reduced, then as they are."""
    files = ("decisions/decisions.csv", "decisions/peers.csv", "paper/table2.csv", "reduction/network.csv")
    found = pd.concat([pd.read_csv(ROOT / "results" / file).assign(file=file) for file in files])
    decided = (found.method != "urrl") | (found.condition == "auto")
    return found[(found.missing_rate == 0.5) & decided].replace({"method": {"nemo": "NEMO"}})


def cells(found: pd.DataFrame, dataset: str, method: str) -> list[tuple[float, str]]:
    """The mean of ten masks, and how it is printed, of every file that has them."""
    groups = found[(found.dataset == dataset) & (found.method == method)].groupby("file").acc
    return [(part.mean(), f"{part.mean():.1f} ± {part.std():.1f}") for _, part in groups if len(part) == 10]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 80


def test_the_comparison_has_the_figures_of_the_results():
    found = runs()
    rows = re.findall(r"^\| ([^|]+) \| \d+ \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", README, re.M)
    assert [name for name, *_ in rows] == list(DATA)
    for name, *shown in rows:
        for method, cell in zip(("urrl", "NEMO", "kmeans-knn"), shown, strict=True):
            known = cells(found, DATA[name], method)
            _, best = max(known)  # simple methods get the better figure
            assert cell.strip("*") == best, (name, method, known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        file = page.parent / target if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), re.M)
            known = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in known, (target, anchor)
