"""What is served: the folder of a model or of a run, opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from viewfuse.fitted.manifest import MANIFEST, checksum, read_manifest
from viewfuse.methods import load
from viewfuse.report.html import filled, join, tag
from viewfuse.report.page import run_page
from viewfuse.report.run_folder import read_run
from viewfuse.report.tables import count
from viewfuse.utils.jobs import chosen_device
from viewfuse.utils.settings import Spell

if TYPE_CHECKING:
    from viewfuse.methods.base import MultiViewClusterer


@dataclass(frozen=True, eq=False)
class Opened:
    """A model that is ready.

    Attributes
    ----------
    fitted : the model, on the CPU; `settle` moves it
    device : where it is asked
    facts : what /model says
    page : the report of a run; of a model alone, a few words
    """

    fitted: MultiViewClusterer
    device: str
    facts: dict[str, Any]
    page: str

    def settle(self) -> None:
        """Bring the model to its device, in the process that asks it."""
        self.fitted.device = self.device
        self.fitted._model = self.fitted._placed_model()


def open_folder(folder: Path, device: str, spell: Spell = str) -> Opened:
    """Open a model, or the folder of a run with the model inside."""
    is_run = (folder / "model" / MANIFEST).is_file() and not (folder / MANIFEST).exists()
    model = folder / "model" if is_run else folder
    if device == "auto":  # found without using it: a process that has used a GPU cannot fork
        device = "cuda:0" if torch.cuda.device_count() else "cpu"
    elif not device.startswith("cuda") or not torch.cuda.device_count():
        chosen_device(device)  # says what is wrong
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # in processes that are forked later, torch would wait for its threads for ever
    try:
        fitted = load(model, device="cpu")
    finally:
        torch.set_num_threads(n_threads)
    manifest = read_manifest(model)
    facts = {
        "method": manifest["method"]["name"],
        "clusters": len(fitted.cluster_centers_),
        "names": {str(label): name for label, name in fitted.cluster_names_.items()},
        "samples": len(fitted.ids_),
        "views": {
            str(view["name"]): plain_names(view.get("columns") or range(view["width"])) for view in manifest["views"]
        },
        "scaling": manifest.get("scaling"),
        "versions": manifest["versions"],
        "version": checksum(manifest)[:16],  # which tells one model from another
    }
    return Opened(fitted, device, facts, run_page(read_run(folder), spell=spell) if is_run else _page(facts))


def plain_names(columns: Sequence[Any]) -> list[str | int]:
    """Names of columns as bodies give them."""
    return [column if isinstance(column, (str, int)) else str(column) for column in columns]


def _page(facts: dict[str, Any]) -> str:
    """A few words about a model; the report of a run says more."""
    views = [tag("li", f"{name}: {count(len(columns), 'column')}") for name, columns in facts["views"].items()]
    title, samples = f"A model of {count(facts['clusters'], 'cluster')}", count(facts["samples"], "sample")
    return filled("model.html", title=title, samples=samples, views=join(views))
