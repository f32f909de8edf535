"""The data sets of the paper's Table 1, and more: what they must be, and where they are found or how they are made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.synthetic import MAKERS
from benchmarks.experiments.unequal import DRAWN, kept_rows
from viewfuse.datasets import load_handwritten
from viewfuse.errors import DataError
from viewfuse.io.readers import open_source
from viewfuse.missing import Gaps, describe

_ENDINGS = (".npz", ".mat")


@dataclass(frozen=True)
class DataSet:
    """What is known of a data set before it is read.

    Attributes
    ----------
    title : how tables call it
    n, widths, classes : samples, columns per view, clusters
    missing_number : views that an incomplete sample lacks, m_n
    epochs : E_p and E_j; None where the paper does not have the set, whose epochs are then sized by `n`
    files : names of files, less their endings, capitals and signs, under which it is published
    in_paper : whether it is one of Table 1
    gaps : those of the file itself; no mask is drawn for such a set
    part_of, sizes : the key of the set of which this one is a part, and how many samples of each class it keeps
    """

    key: str
    title: str
    n: int
    widths: tuple[int, ...]
    classes: int
    missing_number: int
    epochs: tuple[int, int] | None = None
    files: tuple[str, ...] = ()
    in_paper: bool = True
    gaps: Gaps | None = None
    part_of: str = ""
    sizes: tuple[int, ...] = ()

    @property
    def is_made_unequal(self) -> bool:
        """Whether it is there for its unequal sizes, long clusters or outliers; see `unequal`."""
        return bool(self.part_of) or self.key in DRAWN

    @property
    def is_measured(self) -> bool:
        """Whether it is a set as it was published: neither synthetic nor a part of another."""
        return not self.part_of and self.key not in MAKERS

    def rates(self, asked: Sequence[float]) -> tuple[float, ...]:
        """Shares of incomplete samples at which it is run: those asked for, or its own where its gaps are real."""
        return tuple(asked) if self.gaps is None else (round(1 - self.gaps.complete / self.n, 2),)


CATALOGUE = {
    entry.key: entry
    for entry in (
        DataSet("handwritten", "Handwritten", 2000, (240, 76, 216, 47, 64, 6), 10, 4, (100, 100),
                ("handwritten6views",)),
        DataSet("caltech101_7", "Caltech101-7", 1400, (40, 254, 1984, 512, 928), 7, 3, (100, 100),
                ("caltech5v",)),
        DataSet("aloi_deep", "ALOI_Deep", 10800, (2048, 4096, 2048), 100, 2, (15, 0), ("aloideep3v",)),
        DataSet("scene15", "Scene15", 4485, (20, 59), 15, 1, (50, 0)),
        # The paper has no epochs for the last two, only "roughly the same training iteration".
        DataSet("bdgp", "BDGP", 2500, (1750, 79), 5, 1, (60, 60)),
        DataSet("reuters", "Reuters", 18758, (10, 10), 6, 1, (10, 10), ("reutersdim10",)),
        DataSet("caltech7x200_reextracted", "Caltech 7x200 (re-extracted)", 1400, (40, 254, 1984, 512, 928), 7, 3,
                in_paper=False),
        DataSet("landuse21", "LandUse21", 2100, (20, 59, 40), 21, 2, in_paper=False),
        DataSet("citeseq_inhouse1182", "CITE-seq", 1182, (1000, 10), 6, 1, in_paper=False),
        DataSet("tcga_brca150", "TCGA-BRCA", 150, (200, 184, 142), 3, 2, in_paper=False),
        DataSet("3sources", "3Sources", 169, (3560, 3631, 3068), 6, 2, in_paper=False),
        DataSet("bbcsport", "BBCSport", 544, (3183, 3203), 5, 1, in_paper=False),
        DataSet("ngs", "NGs", 500, (2000, 2000, 2000), 5, 2, in_paper=False),
        DataSet("reuters1200", "Reuters 1200", 1200, (2000,) * 5, 6, 3, in_paper=False),
        DataSet("movies", "Movies", 617, (1878, 1398), 17, 1, in_paper=False),
        DataSet("prokaryotic", "Prokaryotic", 551, (393, 3, 438), 4, 2, in_paper=False),
        DataSet("proteinfold", "ProteinFold", 694, (27,) * 12, 27, 8, in_paper=False),
        DataSet("mnist4", "MNIST4", 4000, (30, 9, 30), 4, 2, in_paper=False),
        DataSet("3sources_partial", "3Sources, real gaps", 416, (3560, 3631, 3068), 6, 0, in_paper=False,
                gaps=Gaps(416, 3, complete=169, missing=300, patterns=7)),
        DataSet("miniacc_partial", "miniACC, real gaps", 92, (198, 198, 33, 97, 471), 3, 0, in_paper=False,
                gaps=Gaps(92, 5, complete=43, missing=75, patterns=7)),
        DataSet("synthetic_balanced", "Synthetic: balanced", 800, (10, 20, 15), 5, 1, in_paper=False),
        DataSet("synthetic_imbalanced", "Synthetic: imbalanced 20:1", 742, (10, 20, 15), 5, 1, in_paper=False),
        DataSet("synthetic_noise_view", "Synthetic: a view of noise", 800, (10, 20, 15, 15), 5, 1, in_paper=False),
        DataSet("synthetic_duplicated_view", "Synthetic: a view twice", 800, (10, 20, 15, 10), 5, 1, in_paper=False),
        DataSet("synthetic_rings", "Synthetic: rings", 720, (10, 20, 15), 3, 1, in_paper=False),
        DataSet("synthetic_many_missing", "Synthetic: many missing", 800, (10, 20, 15), 5, 2, in_paper=False),
        DataSet("handwritten_noise_view", "Handwritten + synthetic view of noise", 2000,
                (240, 76, 216, 47, 64, 6, 15), 10, 4, in_paper=False),
        DataSet("synthetic_95_5", "Synthetic: 95/5", 1000, (10, 12), 2, 1, in_paper=False),
        DataSet("synthetic_90_8_2", "Synthetic: 90/8/2", 300, (10, 12), 3, 1, in_paper=False),
        DataSet("synthetic_90_8_2_of_500", "Synthetic: 90/8/2 of 500", 500, (10, 12), 3, 1, in_paper=False),
        DataSet("synthetic_halves", "Synthetic: 400 to 12", 787, (10, 12, 9), 6, 1, in_paper=False),
        DataSet("synthetic_geometric", "Synthetic: ten sizes, 400 to 8", 1124, (15, 12, 10), 10, 1, in_paper=False),
        DataSet("synthetic_outliers", "Synthetic: outliers", 300, (10, 12), 3, 1, in_paper=False),
        DataSet("synthetic_cigars", "Synthetic: cigars", 300, (4, 5), 3, 1, in_paper=False),
        DataSet("handwritten_unequal", "Handwritten, digits 1:20", 1050, (240, 76, 216, 47, 64, 6), 10, 4,
                in_paper=False, part_of="handwritten", sizes=(10, 31, 52, 73, 94, 116, 137, 158, 179, 200)),
        # The second largest class of the next three is cut to 5 % of the samples that are left.
        DataSet("citeseq_cut", "CITE-seq, a class at 5 %", 1009, (1000, 10), 6, 1,
                in_paper=False, part_of="citeseq_inhouse1182", sizes=(69, 99, 7, 571, 50, 213)),
        DataSet("prokaryotic_cut", "Prokaryotic, a class at 5 %", 462, (393, 3, 438), 4, 2,
                in_paper=False, part_of="prokaryotic", sizes=(313, 91, 35, 23)),
        DataSet("bbcsport_cut", "BBCSport, a class at 5 %", 442, (3183, 3203), 5, 1,
                in_paper=False, part_of="bbcsport", sizes=(62, 104, 193, 22, 61)),
    )
}  # fmt: skip


class Loaded(NamedTuple):
    """A data set that was read: its views, and labels, at which nothing but the scoring looks.

    Attributes
    ----------
    labels : of shape (samples,); whole numbers below 0 are not known
    remark : what a reader of the results should know of the file
    mask : boolean array of shape (samples, views) of a set whose gaps are real; None where all views are there
    """

    entry: DataSet
    views: list[NDArray[np.float32]]
    labels: NDArray[np.generic]
    remark: str = ""
    mask: NDArray[np.bool_] | None = None

    def checksum(self) -> str:
        """Of the views, so that results of other data are not taken for those of these."""
        found = hashlib.sha256(b"" if self.mask is None else self.mask.tobytes())
        for view in self.views:
            found.update(np.ascontiguousarray(view).data)
        return found.hexdigest()


def title_of(key: str) -> str:
    """How tables call a data set; one that the catalogue does not have is called by its key."""
    return CATALOGUE[key].title if key in CATALOGUE else key


def find_file(folder: Path, entry: DataSet) -> Path | None:
    """The file of a data set in the folder, if it is there."""
    names = [_bare(entry.key), *entry.files]
    there = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in _ENDINGS]
    found = [path for path in there if _bare(path.stem) in names]
    return min(found, key=lambda path: names.index(_bare(path.stem)), default=None)


def _bare(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def load(folder: Path, entry: DataSet) -> Loaded:
    """Read a data set and refuse it where it is not what the catalogue says.

    Handwritten comes with the package; synthetic sets are made, whatever the folder holds.
    """
    if entry.key in MAKERS:
        return Loaded(entry, *MAKERS[entry.key]())
    if entry.part_of:
        whole = load(folder, CATALOGUE[entry.part_of])
        rows = kept_rows(whole.labels, entry.sizes)
        return Loaded(entry, [view[rows] for view in whole.views], whole.labels[rows], whole.remark)
    path = find_file(folder, entry)
    if path is not None:
        return _read(path, entry)
    if entry.key == "handwritten":
        return Loaded(entry, *load_handwritten())
    files = " or ".join(f"{entry.key}{ending}" for ending in _ENDINGS)
    raise DataError(f"{folder} does not hold {files}")


def _read(path: Path, entry: DataSet) -> Loaded:
    source = open_source(path)
    if source.labels is None:
        raise DataError(f"{path} holds no labels to score with; add them as 'labels'")
    views, labels = source.read().dense(), np.asarray(source.labels)
    chosen = _views_of_the_table(views.widths, entry.widths)
    widths = [views.widths[v] for v in chosen]
    wrong = list(differences(entry, len(views), widths, len(np.unique(labels[is_known(labels)]))))
    if (gaps := describe(views.mask)) != (entry.gaps or replace(gaps, complete=len(views), missing=0, patterns=1)):
        wrong.append(f"gaps: {gaps} instead of {entry.gaps or 'none'}")
    if wrong:
        known = "the paper's Table 1" if entry.in_paper else "the catalogue"
        raise DataError(f"{path} is not the set of {known} ({'; '.join(wrong)})")
    note = f"{path} has the views {_listed(views.widths)}; {_listed(widths)} are taken, in this order"
    remark = note if chosen != list(range(len(views.widths))) else ""
    mask = None if entry.gaps is None else views.mask[:, chosen]
    return Loaded(entry, [views.arrays[v] for v in chosen], labels, remark, mask)


def is_known(labels: NDArray[np.generic]) -> NDArray[np.bool_]:
    """Which labels, of shape (samples,), are known; whole numbers below 0 are not."""
    return np.array([not isinstance(label, int) or label >= 0 for label in labels.tolist()], dtype=bool)


def _views_of_the_table(widths: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Which views are meant: some published files hold them in another order, or more of them."""
    found = [v for width in wanted for v, there in enumerate(widths) if there == width]
    return found if len(found) == len(wanted) and len(set(found)) == len(found) else list(range(len(widths)))


def _listed(widths: Sequence[int]) -> str:
    return "/".join(map(str, widths))


def differences(entry: DataSet, n: int, widths: Sequence[int], classes: int) -> Iterator[str]:
    """In words, what is not as the catalogue says."""
    facts = (
        ("samples", n, entry.n),
        ("views", _listed(widths), _listed(entry.widths)),
        ("classes", classes, entry.classes),
    )
    for what, found, wanted in facts:
        if found != wanted:
            yield f"{what}: {found} instead of {wanted}"


def load_each(data_dir: Path, keys: Iterable[str], log: Callable[[str], None]) -> Iterator[tuple[str, Loaded]]:
    """The data sets that are there; of those that are not a line says so."""
    for key in keys:
        try:
            yield key, load(data_dir, CATALOGUE[key])
        except DataError as error:
            log(f"left out: {error}")
