"""viewfuse info."""

from __future__ import annotations

from pathlib import Path

import click

from viewfuse.cli import options


@click.command()
@options.model
@options.as_json
def command(model: Path, as_json: bool) -> None:
    """Filled in by the group."""
    from viewfuse.fitted.persistence import check

    manifest = check(model)
    views = [f"{view['name']} ({view['width']} columns)" for view in manifest["views"]]
    method = manifest["method"]
    facts = {"method": method["name"], "clusters": method["config"]["n_clusters"], "views": views}
    facts |= {"samples": manifest["n_samples"]}
    size = sum(file["bytes"] for file in manifest["files"].values())
    versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
    options.show(
        {**facts, "scaling": manifest["scaling"], "format": manifest["format"], "written by": versions, "bytes": size},
        as_json,
    )
