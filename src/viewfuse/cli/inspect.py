"""viewfuse inspect and choose: what files say before any fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viewfuse.cli import options
from viewfuse.data import filling
from viewfuse.data.checks import absent_views, data_warnings, in_words, suspicious_columns
from viewfuse.data.input_types import is_sparse
from viewfuse.data.scaling import fit_scaler
from viewfuse.data.tables import column_bounds
from viewfuse.data.views import Views, without_rare
from viewfuse.errors import DataError
from viewfuse.io.writers import as_json
from viewfuse.methods.urrl.config import SEVERAL, Config
from viewfuse.plots.pictures import draw_choice, why_not_drawn
from viewfuse.plots.style import PictureStyle
from viewfuse.reduction.reduce import FrontEnd, Reduction, fit_front_end
from viewfuse.selection.decision_texts import p_value
from viewfuse.utils.atomic import write_file
from viewfuse.utils.console import is_live, plain, tell

_MOST_CELLS, _MOST_STORED = 5_000_000, 1_000_000
"""Values of a dense and of a sparse view from which its kind and components are found; of more, rows are drawn."""
_LEAST_ROWS = 500
_MOST_SAMPLES = 10_000
"""Among which outliers are looked for; of more a random choice."""
_EARLY_END = 0.3
"""Of the epochs of a joint stage: over five sets with clear clusters it took .12 to .62 of them."""
_HEADER = ("view", "kind", "columns", "reduced to", "kept", "present", "missing", "lowest", "highest")


@options.verb(options.inputs)
def inspect(inputs: options.Inputs) -> tuple[options.Facts, str]:
    views = inputs.open().read()
    facts = describe(views)
    # The same warnings as fit gives, before the user waits for a fit.
    remarks = absent_views(views)
    pairs = [(view["name"], view["empty"]) for view in facts["views"] if view["empty"]]
    remarks += [f"empty cells, which a fit fills, {filling.in_words(*pair)}" for pair in pairs]
    for check in (filling.check_training_cells, without_rare):
        try:
            check(views)
        except DataError as error:
            remarks.append(f"a fit refuses this: {error}")
    facts["remarks"] = remarks + data_warnings(views, [view["suspicious"] for view in facts["views"]])
    ids = plain(", ".join(map(str, facts["first_ids"])))
    patterns = [(p["views"], p["samples"]) for p in facts["patterns"]]
    return facts, "\n\n".join([
        f"{len(views)} samples, {len(views.names)} views\nids: {ids}, ...",
        options.table(_HEADER, [_row(view) for view in facts["views"]], text=(0, 1)),
        options.table(("views that are there", "samples"), patterns),
        *map(plain, _remarks(facts)),
    ])  # fmt: skip


def _row(view: dict[str, Any]) -> tuple[Any, ...]:
    """A view for people; what is not known, or is not done, is a dash."""
    is_reduced = view["reduction"] not in (None, "none")
    reduced = (view["reduced_columns"], f"{view['variance_kept']:.0%}") if is_reduced else ("-", "-")
    bounds = (f"{view['low']:g}", f"{view['high']:g}") if view["present"] else ("-", "-")
    return view["name"], view["kind"] or "-", view["columns"], *reduced, view["present"], view["missing"], *bounds


def _remarks(facts: dict[str, Any]) -> list[str]:
    """What stands below the tables, a line each: what looks wrong, what was looked at, what a fit costs."""
    lines = [line for view in facts["views"] for line in in_words(view["name"], view["suspicious"])]
    lines += [line for line in facts["remarks"] if line not in lines]
    lines += [
        f"{view['name']}: its kind and what is kept of it are estimated from {view['rows_looked_at']} of its "
        f"{view['present']} samples, drawn at random"
        for view in facts["views"]
        if view["rows_looked_at"] < view["present"]
    ]
    outliers, fit = facts["outliers"], facts["fit"]
    few = f" (among {outliers['looked_at']:,}, drawn at random)" if outliers["looked_at"] < facts["samples"] else ""
    lines += [f"outliers: {outliers['why']}{few}"] if outliers["why"] else []
    least, most, many = (_time_in_words(fit[name]) for name in ("least_seconds", "seconds", "seconds_of_many"))
    wait = f"about {least} where clusters are clear, at most {most}" if least != most else f"about {most}"
    wait += f" ({many} for more than {SEVERAL} clusters)" if many != most else ""
    steps = f"{fit['steps']:,} steps of {1e3 * fit['step_seconds']:.0f} ms"
    return [
        *lines,
        f"a fit with default settings: {wait} on this CPU; {steps}, "
        f"{fit['parameters'] / 1e6:.1f} million parameters, {fit['bytes'] / 1e6:,.0f} MB of memory besides the data",
    ]


def _time_in_words(seconds: float) -> str:
    if seconds < 100:
        return f"{max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.0f} hours"


def describe(views: Views) -> dict[str, Any]:
    """What is there, what is missing, and what a fit would make of it."""
    patterns, counts = np.unique(views.mask, axis=0, return_counts=True)
    names, order = np.array(views.names), np.argsort(-counts, kind="stable")
    looks = [_rows_to_look_at(views, v) for v in range(len(names))]
    empty = {cells.view: cells.facts() for cells in filling.count_empty(views)}
    views = filling.filled_by_median(views)
    front_ends = [fit_front_end(views.arrays[v], rows) for v, rows in enumerate(looks)]
    reduction = Reduction(tuple(front_ends))
    return {
        "samples": len(views),
        "first_ids": views.ids[:3].tolist(),
        "views": [
            _describe_view(views, v, front_ends[v], int(looks[v].sum())) | {"empty": empty.get(name)}
            for v, name in enumerate(views.names)
        ],
        "patterns": [{"views": " + ".join(names[patterns[p]]), "samples": int(counts[p])} for p in order],
        "outliers": _outliers(views, reduction),
        "fit": _describe_fit(len(views), [one.columns for one in front_ends], reduction),
    }


def _describe_view(views: Views, v: int, front_end: FrontEnd, n_rows: int) -> dict[str, Any]:
    n = int(views.mask[:, v].sum())
    facts = {"name": views.names[v], "columns": views.widths[v], "present": n, "missing": len(views) - n}
    if not n:
        nothing = dict.fromkeys(("low", "high", "kind", "reduction", "reduced_columns", "variance_kept"))
        return {**facts, **nothing, "suspicious": {}, "rows_looked_at": 0}
    low, high = (bound + views.offsets[v] for bound in column_bounds(views.arrays[v], views.mask[:, v]))
    return {
        **facts,
        "low": float(low.min()),
        "high": float(high.max()),
        "suspicious": suspicious_columns(views, v),
        "kind": front_end.kind.said,
        "reduction": front_end.how,
        "reduced_columns": front_end.columns,
        "variance_kept": front_end.kept,
        "rows_looked_at": n_rows,
    }


def _outliers(views: Views, reduction: Reduction) -> dict[str, Any]:
    """Samples that a fit with default settings would call outliers: by view and id how far they lie from others."""
    import torch

    from viewfuse.fitted.model import scaled_tensors
    from viewfuse.neighbors.index import index_training_set
    from viewfuse.selection.decision_texts import words
    from viewfuse.selection.rules import AMONG, outliers

    rows = np.sort(np.random.default_rng(0).permutation(len(views))[:_MOST_SAMPLES])
    reduced = reduction.apply(views[rows])
    scaled = scaled_tensors(reduced, fit_scaler(reduced, "mixed", reduction.units), torch.device("cpu"))
    found = outliers(index_training_set(*scaled, AMONG), views.names, reduced.ids)
    return {"looked_at": len(rows), "by_view": found.evidence, "why": words(found) if found.chosen else ""}


def _rows_to_look_at(views: Views, v: int) -> NDArray[np.bool_]:
    """Samples that have the view, of shape (samples,): all, or of a large view as many as are looked at in a moment."""
    array, present = views.arrays[v], views.mask[:, v]
    rows = np.flatnonzero(present)
    share = _MOST_STORED / max(array.nnz, 1) if is_sparse(array) else _MOST_CELLS / max(len(rows) * array.shape[1], 1)
    count = max(_LEAST_ROWS, int(share * len(rows)))
    if count >= len(rows):
        return present
    chosen = np.zeros_like(present)
    chosen[np.random.default_rng(0).choice(rows, count, replace=False)] = True
    return chosen


def _describe_fit(n_samples: int, widths: list[int], reduction: Reduction) -> dict[str, Any]:
    """What a fit with default settings costs, with a training of every scaling.

    The least time is that of one scaling whose clusters are clear, and of a joint stage that ends early.
    """
    from viewfuse.methods.urrl import network as cost
    from viewfuse.methods.urrl.stages import measured_step

    config, many = (Config(n_clusters=k).sized(n_samples) for k in (SEVERAL, SEVERAL + 1))
    n_scalings = max({"rows": 1, "view": 2, "columns": 3}[unit] for unit in reduction.units)  # how many differ
    joint = round(_EARLY_END * config.epochs(n_samples).joint)
    clear = replace(config, pretrain_epochs=config.early_epochs(n_samples), joint_epochs=joint)
    step = measured_step(widths, config, n_samples)
    step_of_many = measured_step(widths, many, n_samples) if many.embedding_dim != config.embedding_dim else step

    def seconds(one: Config, trained: int, of_step: float) -> float:
        return round(cost.fit_seconds(n_samples, widths, one, trained, of_step), 1)

    return {
        "seconds": seconds(config, n_scalings, step),
        "least_seconds": seconds(clear, 1, step),
        "seconds_of_many": seconds(many, n_scalings, step_of_many),
        "step_seconds": step,
        "steps": cost.n_steps(n_samples, config, n_scalings),
        "parameters": cost.n_parameters(widths, config),
        "bytes": cost.fit_bytes(n_samples, widths, config, n_waiting=n_scalings - 1),
    }


@options.verb(
    options.inputs, options.cluster_range, options.preparation_or_log1p, options.device, options.random_state,
    options.out("Folder for k.png and choice.json; else none is written.", required=False), options.pictures,
    options.force,
)  # fmt: skip
def choose(inputs: options.Inputs, out: Path | None, style: PictureStyle, force: bool,
           **params: Any) -> tuple[options.Facts, str]:  # fmt: skip
    if out is not None:
        options.check_new_folder(out, force, inputs)
    views = inputs.open().read()
    from viewfuse import URRL

    decision = URRL(**params).set_params(verbose=is_live()).choose(views)
    parts = ["\n".join(drawn_tree(decision["splits"]))] if decision["splits"] else []
    parts.append(plain(decision["why"]))
    if out is None:
        return decision, "\n\n".join(parts)
    write_choice(out, decision, style)
    return {**decision, "written to": str(out)}, "\n\n".join([*parts, f"written to {out}"])


def drawn_tree(splits: Sequence[Mapping[str, Any]]) -> list[str]:
    """A tree in lines, with the size of each part; parts that no standing split divides are the clusters."""
    lines = [f"{sum(splits[0]['sizes']):,} samples{_said(splits[0])}"]

    def draw(place: int, margin: str) -> None:
        below = {one["side"]: i for i, one in enumerate(splits) if one["parent"] == place}
        for side, size in enumerate(splits[place]["sizes"] if splits[place]["stands"] else ()):
            said = _said(splits[below[side]]) if side in below else ""
            lines.append(f"{margin}{'|-' if side == 0 else '`-'} {size:,}{said}")
            if side in below:
                draw(below[side], margin + ("|  " if side == 0 else "   "))

    draw(0, "")
    return lines


def _said(split: Mapping[str, Any]) -> str:
    from viewfuse.selection.split_evidence import Split
    from viewfuse.selection.split_tree import lacks_valley  # torch is there by now

    held = [one for one in split["held_out"].values() if one is not None]
    views = f", views left out {sum(held) / len(held):.2f}" if held else ""
    views += f", clearest in {plain(split['alone'])}" if split["alone"] else ""
    why = ": samples are as dense at the border" if lacks_valley(Split(**split)) else ""
    ends = "" if split["stands"] else f", stays whole{why}"
    return f"  (strength {split['strength']:.2f}, p {p_value(split['p_value'], '= ')}{views}{ends})"


def write_choice(out: Path, decision: dict[str, Any], style: PictureStyle) -> None:
    """Write how the number of clusters was chosen, and draw it."""
    write_file(out / "choice.json", as_json(decision, indent=1).encode())
    why = why_not_drawn(draw_choice, out / "k.png", decision, style)
    if why is not None:
        tell(f"k.png is not there: {plain(why)}")
