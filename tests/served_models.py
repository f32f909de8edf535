"""A small model to be served, and samples to ask it about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from conftest import make_blobs
from viewfuse import URRL, Config

TINY = {"config": Config(embedding_dim=16, hidden_dim=16, pretrain_epochs=6, joint_epochs=0), "scaling": "standard"}


def frames(n: int = 40) -> dict[str, pd.DataFrame]:
    views, _, _ = make_blobs(n, 2, widths=(10, 5), missing=0.0)
    ids = [f"p{i}" for i in range(n)]
    return {
        name: pd.DataFrame(view, index=ids, columns=[f"{name}{c}" for c in range(view.shape[1])])
        for name, view in zip(("rna", "protein"), views, strict=True)
    }


def save_model(folder: Path) -> Path:
    URRL(2, **TINY, random_state=0).fit(frames()).save(folder)
    return folder


def body(given: dict[str, pd.DataFrame], *, ids: bool = True) -> dict[str, Any]:
    """Samples as JSON holds them."""
    views = {name: {"columns": list(x.columns), "values": x.to_numpy(float).tolist()} for name, x in given.items()}
    return {"views": views} | ({"ids": list(next(iter(given.values())).index)} if ids else {})
