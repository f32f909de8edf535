"""Times default fits, and ten networks of the paper's schedule, on five data sets.

Run it with the code of two commits in turns: PYTHONPATH=OTHER/src python -m benchmarks.studies.engine.speed ...
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from benchmarks.experiments.catalogue import CATALOGUE
from viewfuse import URRL, Views
from viewfuse.fitted.model import Source
from viewfuse.methods.urrl.config import PAPER, Config
from viewfuse.methods.urrl.fit import fit_models
from viewfuse.missing import paper_mask

SETS = ("handwritten", "bdgp", "citeseq_inhouse1182", "scene15", "bbcsport")


def main() -> None:
    """Print the seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the data sets as .npz")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sets", nargs="+", default=SETS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--paper", action="store_true", help="also ten networks of the paper's schedule on Handwritten")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    first, k = masked(asked.data / f"{asked.sets[0]}.npz")
    short = {"config": Config(pretrain_epochs=2, joint_epochs=2), "scaling": "minmax"}
    URRL(k, device=asked.device, random_state=9, **short).fit(first)  # libraries set themselves up
    found: dict[str, list[float]] = {}
    for name in asked.sets:
        views, k = masked(asked.data / f"{name}.npz")
        found[name] = [
            seconds(lambda s=s, views=views, k=k: URRL(k, device=asked.device, random_state=s).fit(views), asked.device)
            for s in range(asked.repeats)
        ]
    if asked.paper:
        views, _ = masked(asked.data / "handwritten.npz")
        how = (Config(n_clusters=10, **PAPER), "minmax", [list(range(10))], torch.device(asked.device))
        sources = [Source.of(Views(views), asked="none")]
        found["ten networks"] = [seconds(lambda: fit_models(sources, *how), asked.device)]
    print(json.dumps({"threads": torch.get_num_threads(), "torch": torch.__version__, "seconds": found}))


def masked(path: Path) -> tuple[list[np.ndarray], int]:
    """The views of a data set at rate .5, mask 0, and the number of its classes."""
    with np.load(path, allow_pickle=False) as file:
        views = [file[name] for name in file.files if name.startswith("view_")]
        k = len(np.unique(file["labels"]))
    mask = paper_mask(len(views[0]), len(views), 0.5, CATALOGUE[path.stem].missing_number, random_state=0)
    return [np.where(mask[:, [v]], view, np.nan).astype(np.float32) for v, view in enumerate(views)], k


def seconds(work, device: str) -> float:
    """How long it takes, the work of a GPU included."""
    began = time.perf_counter()
    work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return round(time.perf_counter() - began, 3)


if __name__ == "__main__":
    main()
