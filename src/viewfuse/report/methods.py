"""A paragraph about a run for the methods section of a paper: versions, settings, seed, gaps, citation."""

from __future__ import annotations

from dataclasses import fields

from viewfuse.methods.urrl.config import Config
from viewfuse.missing import describe
from viewfuse.report.run_folder import FinishedRun

CITATION = (
    "G. Teng, T. Mao, C. Shen, X. Tian, X. Liu, Y. Chen, J. Ye: URRL-IMVC: Unified and Robust Representation Learning "
    "for Incomplete Multi-View Clustering. KDD 2024, doi:10.1145/3637528.3671887"
)
_ELSEWHERE = ("n_clusters", "cluster_range", "random_state", "device", "n_jobs")
"""Parameters that the paragraph has in words, and those that change no result."""


def methods_text(run: FinishedRun) -> str:
    """What was done, in sentences to paste."""
    params = run.summary.get("params") or {}
    known = run.versions
    own = f"viewfuse {known['viewfuse']}" if "viewfuse" in known else "viewfuse"
    others = ", ".join(f"{name} {version}" for name, version in known.items() if name != "viewfuse")
    chosen = "chosen without labels by a tested tree of splits" if run.number else "set beforehand"
    defaults = {one.name: one.default for one in fields(Config)}
    set_to = ", ".join(
        f"{name} = {value}"
        for name, value in params.items()
        if name not in _ELSEWHERE and value is not None and defaults.get(name, "auto") != value
    )
    sentences = [
        f"{len(run.ids):,} samples with {len(run.views)} views ({', '.join(run.views)}) were clustered by the method "
        f"URRL-IMVC [1] as implemented in {own}{f' ({others})' if others else ''}.",
        f"Missing views: {describe(run.present)}.",
        f"The number of clusters, {run.n_clusters}, was {chosen}.",
        f"The random seed was {params.get('random_state', 'not fixed')}; all settings were the defaults of that "
        f"version{f', but for {set_to}' if set_to else ''}.",
        "No label was used in training.",
    ]
    return " ".join(sentences) + f"\n\n[1] {CITATION}\n"
