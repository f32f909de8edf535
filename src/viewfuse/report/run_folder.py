"""The folder of a run: what the report is made from, written after a fit and read again, faults with their place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.data.views import Views
from viewfuse.errors import BadModelFile, DataError
from viewfuse.fitted.manifest import read_manifest
from viewfuse.io.labels import CsvTable, read_table
from viewfuse.io.writers import OUTLIER, Sheet, write_sheets
from viewfuse.plots.layout import Places
from viewfuse.selection.decision_texts import restored
from viewfuse.selection.decisions import ClusterNumber, Decision, KeptNumbers, Trust
from viewfuse.utils.atomic import parsed

if TYPE_CHECKING:
    from viewfuse.methods.fitted_estimator import MultiViewClusterer

_CURE = "run viewfuse fit again, with another --out"


@dataclass(frozen=True, eq=False)
class FinishedRun:
    """What stands in the folder of a run; parts that an older viewfuse did not write are None or empty."""

    folder: Path
    summary: dict[str, Any]
    ids: list[str]
    labels: NDArray[np.int64]  # of outliers perhaps -1
    confidence: NDArray[np.float64]
    uncertain: NDArray[np.bool_]
    present: NDArray[np.bool_]  # of shape (samples, views)
    map: CsvTable | None  # id, x, y of the samples that have a place on the map
    explained: CsvTable | None  # explanation/samples.csv, as `viewfuse explain` writes it, and two more of that folder:
    features: CsvTable | None
    merges: CsvTable | None  # which clusters join first when there are to be fewer
    found_again: list[tuple[float, str]]  # per cluster the chance that a repeated fit finds it, and a word for it
    history: CsvTable | None
    versions: dict[str, str]  # of the packages that the model was written by
    title: str = ""  # what the page calls the run, where that is not the name of its folder
    novelty: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    outlier: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=bool))

    @property
    def name(self) -> str:
        """What the page calls the run."""
        return self.title or self.folder.resolve().name

    @property
    def views(self) -> list[str]:
        """The names of the views."""
        return [str(name) for name in self.summary["views"]]

    @property
    def n_clusters(self) -> int:
        """The number of clusters, empty ones among them."""
        return len(self.summary["cluster_sizes"])

    @property
    def cluster_names(self) -> dict[int, str]:
        """The names of clusters that have one, by number."""
        found = self.summary.get("names")
        known = found if isinstance(found, dict) else {}
        return {int(label): str(name) for label, name in known.items() if label.isdecimal()}

    def called(self, label: int) -> str:
        """The number of a cluster, with its name if it has one."""
        return f"{label} ({self.cluster_names[label]})" if label in self.cluster_names else str(label)

    @property
    def unused(self) -> frozenset[int]:
        """Numbers of a former fit that no cluster has any more."""
        found = self.decisions.get(KeptNumbers.name)
        return frozenset(found.unused) if isinstance(found, KeptNumbers) else frozenset()

    @property
    def sizes(self) -> list[int]:
        """How many samples each cluster has."""
        return np.bincount(self.labels[self.labels != OUTLIER], minlength=self.n_clusters).tolist()

    @cached_property
    def decisions(self) -> dict[str, Decision]:
        """What was decided, and from which evidence."""
        return restored(self.summary.get("decisions") or {})

    @property
    def number(self) -> ClusterNumber | None:
        """How the number of clusters was chosen; None where the user set it."""
        found = self.decisions.get(ClusterNumber.name)
        return found if isinstance(found, ClusterNumber) and found.splits else None

    @property
    def trust(self) -> Trust | None:
        """Whether the clusters would be found again; None where an older viewfuse did not say."""
        found = self.decisions.get(Trust.name)
        return found if isinstance(found, Trust) and len(found.clusters) == self.n_clusters else None


def write_evidence(folder: Path, model: MultiViewClusterer, views: Views, places: Places) -> None:
    """Write places on the map, and why the samples that have one are where they are."""
    from viewfuse.fitted.explanation import sheets

    write_places(folder, views.ids, places)
    explanation = model.explain(model.complete(views[places.rows])[0])
    found = sheets(explanation)
    del found["effects.csv"]  # of wide views this would be far longer than all else
    write_sheets(folder / "explanation", found)


def write_evidence_again(folder: Path, model: MultiViewClusterer) -> None:
    """Write confidences of explained samples and clusters again, after they were measured; all else stays as it is."""
    from viewfuse.fitted.clusters import in_a_word, typical_samples
    from viewfuse.fitted.explanation import joined, second_best

    folder = folder / "explanation"
    if not (folder / "samples.csv").exists():
        return
    samples, clusters = read_table(folder / "samples.csv"), read_table(folder / "clusters.csv")
    place, ids = {str(name): row for row, name in enumerate(model.ids_.tolist())}, samples.ids()
    if unknown := [name for name in ids if name not in place]:
        raise DataError(f"{samples.path}: the model does not know {unknown[0]!r}; {_CURE}")
    chances = model.soft_labels_[[place[name] for name in ids]]
    labels, confidence = chances.argmax(axis=1), chances.max(axis=1)
    second, second_confidence = second_best(chances)
    again = model._again().tolist()
    own = [typical_samples(np.flatnonzero(labels == c), confidence) for c in range(len(again))]
    typical = [joined([ids[row] for row in rows.tolist()]) for rows in own]
    sure = {"confidence": confidence, "second_label": second, "second_confidence": second_confidence}
    found: list[tuple[CsvTable, dict[str, list[Any]]]] = [
        (samples, {name: values.tolist() for name, values in sure.items()}),
        (clusters, {"typical": typical, "stability": again, "again": list(map(in_a_word, again))}),
    ]
    for table, changed in found:
        columns = {name: changed.get(name, cells) for name, cells in table.columns.items()}
        write_sheets(folder, {table.path.name: Sheet(tuple(columns), zip(*columns.values(), strict=True))})


def write_places(folder: Path, ids: NDArray[Any], places: Places) -> None:
    """Write where samples lie on the map."""
    xy = zip(ids[places.rows].tolist(), *places.xy.astype(float).tolist(), strict=True)
    write_sheets(folder, {"map.csv": Sheet(("id", "x", "y"), xy)})


def read_run(folder: Path) -> FinishedRun:
    """Read the folder that `viewfuse fit` wrote."""

    def optional(name: str) -> CsvTable | None:
        return read_table(folder / name) if (folder / name).exists() else None

    summary = _read_summary(folder / "summary.json")
    labels, clusters = read_table(folder / "labels.csv"), optional("explanation/clusters.csv")
    numbers, n_clusters = labels.whole_numbers("label"), len(summary["cluster_sizes"])
    if len(numbers) and not OUTLIER <= numbers.min() <= numbers.max() < n_clusters:
        raise DataError(f"{labels.path} has labels that {folder / 'summary.json'} does not know; {_CURE}")
    found_again = []
    if clusters is not None and "again" in clusters.columns and len(clusters) == n_clusters:
        found_again = list(zip(clusters.numbers("stability").tolist(), clusters.column("again"), strict=True))
    try:
        versions = read_manifest(folder / "model")["versions"]
    except BadModelFile:  # the page does without; loading the model reports it
        versions = {}
    return FinishedRun(
        folder=folder,
        summary=summary,
        ids=labels.ids(),
        labels=numbers,
        confidence=labels.numbers("confidence"),
        uncertain=labels.whole_numbers("uncertain") != 0,
        novelty=labels.numbers("novelty") if "novelty" in labels.columns else np.empty(0),
        outlier=(labels.whole_numbers("outlier") if "outlier" in labels.columns else np.empty(0)) != 0,
        present=_presence(labels, [str(name) for name in summary["views"]]),
        map=optional("map.csv"),
        explained=optional("explanation/samples.csv"),
        features=optional("explanation/features.csv"),
        merges=optional("explanation/merges.csv"),
        found_again=found_again,
        history=optional("history.csv"),
        versions={str(name): str(version) for name, version in versions.items()},
    )


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = parsed(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path.parent} holds no {path.name}; give the folder that viewfuse fit wrote") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); {_CURE}") from None
    known = isinstance(summary, dict) and all(isinstance(summary.get(key), list) for key in ("views", "cluster_sizes"))
    decisions = summary.get("decisions", {}) if known else None
    if not isinstance(decisions, dict) or not all(isinstance(one, dict) for one in decisions.values()):
        raise DataError(f"{path} does not say what was fitted; {_CURE}")
    return summary


def _presence(labels: CsvTable, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which views the samples have, of shape (samples, views)."""
    texts = labels.column("views_present")
    known = {text: _subset(text, names) for text in set(texts)}
    wrong = [row for row, text in enumerate(texts) if known[text] is None]
    if wrong:
        where = f"{labels.path}, data row {wrong[0] + 1}, column views_present"
        raise DataError(f"{where}: {texts[wrong[0]]!r} are not views of the run; {_CURE}")
    return np.array([known[text] for text in texts], dtype=bool).reshape(len(texts), len(names))


def _subset(text: str, names: Sequence[str]) -> list[bool] | None:
    """Which of the names, in their order, were joined by blanks to this text; None where that cannot be."""
    found = re.fullmatch("".join(rf"({re.escape(name)}(?: |\Z))?" for name in names), text)
    return None if found is None else [part is not None for part in found.groups()]
