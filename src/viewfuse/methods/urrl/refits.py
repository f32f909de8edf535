"""Fits that are repeated on a part of the samples: how often a sample is in its cluster again, measured."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from viewfuse.data.side_information.knowledge import NOTHING, Knowledge
from viewfuse.data.views import Views
from viewfuse.engine.checkpoint import Checkpoint
from viewfuse.engine.replicates import clusters, embed, replicate_seeds
from viewfuse.engine.training import Progress
from viewfuse.fitted.manifest import fit_facts
from viewfuse.fitted.model import Model, Source, scaled_tensors
from viewfuse.methods.urrl.config import Config
from viewfuse.methods.urrl.fit import fit_models
from viewfuse.selection.confidence import mean_confidence
from viewfuse.selection.decision_texts import records
from viewfuse.selection.rules import found_again, on_uncertain, with_reasons
from viewfuse.selection.scores import stability
from viewfuse.utils.settings import checked_count

_SHARE = 0.8
_LEAST = 2  # refits: one alone has no interval


def source_of(model: Model, ids: NDArray[Any]) -> Source:
    """The training samples of a model as they were before they were scaled."""
    present, stored = model.stored.present.cpu().numpy(), model.stored.values
    arrays = [model.scaler.undo(v, view.cpu().numpy()) * present[:, v, None] for v, view in enumerate(stored)]
    reduced = Views(dict(zip(model.names, arrays, strict=True)), mask=present, ids=ids)
    return Source(model.columns, model.offsets, model.filler, model.reduction, (), reduced, model.left_out)


def drawn(n: int, n_refits: int, seed: int) -> list[NDArray[np.int64]]:
    """Per refit the samples that it sees: four fifths."""
    draws = np.random.default_rng([seed, 5])
    return [np.sort(draws.choice(n, max(2, round(_SHARE * n)), replace=False)) for _ in range(n_refits)]


def repeated_labels(
    source: Source, n: int, config: Config, scaling: str, n_refits: int, *, seed: int, n_init: Any,
    device: torch.device, checkpoint: Path | None = None, known: Knowledge = NOTHING, **ways: Any,
) -> list[NDArray[np.int64]]:  # fmt: skip
    """Where whole fits, with other seeds and on 80 % of the samples, place all `n` of them.

    Each has `n_init` trainings; `checkpoint` is a folder that keeps where they stand, and `ways` are of `fit_models`.
    """
    starts = np.random.SeedSequence([seed, 7]).generate_state(n_refits).tolist()
    found = []
    for number, (rows, start) in enumerate(zip(drawn(n, n_refits, seed), starts, strict=True)):
        seeds = replicate_seeds(int(start) % 2**31, n_init, config.usual_trainings)
        part, kept = source._replace(reduced=source.reduced[rows], left_out=source.left_out.take(rows)), None
        if checkpoint is not None:
            facts = fit_facts(part.reduced, {"config": config, "random_state": list(seeds)}, device)
            kept = Checkpoint(checkpoint / f"refit-{number}", facts)
        with kept.interruptible() if kept else nullcontext():
            own = known.take(rows, n)
            (fitted,) = fit_models([part], config, scaling, [seeds], device, checkpoint=kept, known=own, **ways)
        model = fitted.model
        samples = model.locate(*scaled_tensors(source.reduced, model.scaler, device))
        embedding = embed(model.method, model.network, samples, model.stored)
        found.append(clusters(model.method, model.network, embedding).cpu().numpy())
    return found


def validated(
    fitted: Any, config: Config, n_refits: int, **ways: Any
) -> tuple[Model, NDArray[np.float32], dict[str, dict[str, Any]]]:
    """Repeat the fit of an estimator: its model, chances and decisions then; `ways` are those of `repeated_labels`.

    The chances are, on average over each cluster, the frequencies that were measured.
    """
    n_refits = checked_count("n_refits", n_refits, _LEAST)
    trust, labels, model = fitted.trust_, fitted._clusters(), fitted._model
    seed = 0 if fitted.random_state is None else replicate_seeds(fitted.random_state, 1)[0]
    more: dict[str, Any] = {"seed": seed, "n_init": fitted.n_init}
    more["checkpoint"] = None if fitted.checkpoint is None else Path(fitted.checkpoint) / "validation"
    more["known"] = Knowledge.from_records(fitted.decisions_, fitted.ids_)
    source = source_of(model, fitted.ids_)
    with Progress(shown=bool(fitted.verbose)) as progress:
        more["progress"] = progress
        others = repeated_labels(source, len(labels), config, fitted.scaling, n_refits, **more, **ways)
    hits = np.stack([stability(labels, [other]) > 0 for other in others])
    counts = np.array([[hits[:, labels == c].sum(), hits[:, labels == c].size] for c in range(model.method.n_clusters)])
    # One more of each kind (Laplace): a frequency of 0 or 1 has no logit.
    shares = (counts[:, 0] + 1) / (counts[:, 1] + 2)
    embedding = torch.from_numpy(fitted.embedding_).to(model.stored.present.device)
    logits = model.logits(model.stored, embedding, torch.from_numpy(labels).to(embedding.device))
    model = replace(model, calibration=model.calibration.validated(logits, labels, shares))
    soft = model.assign(model.stored, embedding)
    kept = [one for one in trust.reasons if one["name"] not in ("dissolves", "uncertain")]
    unsure = on_uncertain(soft, model.n_present)
    found = with_reasons(found_again(hits, labels, trust.n_clusters, n_refits), unsure, *kept)
    return model, soft, records(mean_confidence(soft, model.calibration), found)
