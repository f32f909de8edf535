"""Shared helpers: small data, seeds, and the folder of real data sets where a machine has it."""

from __future__ import annotations

import gc
import logging
import os
import sys
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the networks here are so small that threads would only wait
os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # threads that wait actively would take the cores of other tests
os.environ.setdefault("TORCH_MKLDNN_MATMUL_MIN_SIZE", "1000000000")  # as the command line has it; for ARM alone

import numpy as np
import pytest

# Torch and hypothesis are imported below: the process that only hands tests to the others starts 3 s sooner without.


def pytest_collection():
    """Properties are tried on the same examples in every run; what is imported is no garbage."""
    from hypothesis import settings

    settings.register_profile("steady", deadline=None, derandomize=True, max_examples=15)
    settings.load_profile("steady")
    gc.disable()


LONGEST = (
    "update", "jobs", "docs", "formats", "bad_files", "decisions", "cli", "serve", "serve_limits", "auto_clusters",
    "isolated", "batch_effects", "estimator", "methods", "figures", "compare_sets", "published_training",
    "distributed_fit", "fit_schedule", "method_inputs", "replicates", "hints", "checkpoint", "digits",
    "sharded_predict", "golden_methods", "drift",
)  # fmt: skip
"""Files that take longest begin first: `make test` hands out whole files, and one of these at the end would be waited
for by one process with all others idle."""


def pytest_collection_modifyitems(items):
    first = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.name, len(LONGEST)))


def pytest_collection_finish():
    """From now on there may be garbage again; it is not looked for among the half a million objects of the imports.

    Nor is it looked for after every 700 objects, which took 3 % of all computing.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()


def pytest_configure():
    logging.root.addHandler(logging.NullHandler())  # what is logged is not printed among what is tested


class Heard(logging.Handler):
    """What is logged while a test runs."""

    def __init__(self):
        super().__init__()
        self.records, self.text = [], ""

    def emit(self, record):
        self.text += self.format(record) + "\n"
        self.records.append(record)


@pytest.fixture
def caplog():
    """That of pytest listens at hundreds of loggers, six times in each test."""
    heard, loggers = Heard(), [one for one in logging.root.manager.loggerDict.values() if hasattr(one, "propagate")]
    listened = [logging.root, *(one for one in loggers if not one.propagate)]
    for one in listened:
        one.addHandler(heard)
    yield heard
    for one in listened:
        one.removeHandler(heard)


@pytest.fixture(autouse=True)
def _seeded():
    """Tests that draw from the global generators are repeatable."""
    import torch

    np.random.seed(0)  # noqa: NPY002
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(0)
    torch.default_generator.manual_seed(0)  # torch.manual_seed would import torch's compiler for a second


@pytest.fixture(scope="session", autouse=True)
def _quick_disk():
    """Nothing waits for the disk: no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient_reader():
    """The process that reads files stays until the tests end: each new one imports anndata and others for seconds."""
    from viewfuse.io.isolated import process

    with pytest.MonkeyPatch.context() as patch:
        longer = "from viewfuse.io.isolated import server; server._IDLE = 3600.0; "
        patch.setattr(process, "_PROGRAM", longer + process._PROGRAM)
        yield


@pytest.fixture(scope="session", autouse=True)
def _known_groups():
    """What the control groups leave is looked up once: a fit reads their files ten times, for a hundredth of it all."""
    from viewfuse.utils import memory

    look, known = memory._left_in_groups, list(memory._left_in_groups())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_left_in_groups", lambda *where: look(*where) if where else iter(known))
        yield


@pytest.fixture(scope="session", autouse=True)
def _counted_parameters():
    """A network is built once to count its parameters, not before every fit that has the same settings."""
    from viewfuse.methods.urrl import network

    count = cache(network.n_parameters)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "n_parameters", lambda widths, config: count(tuple(widths), config))
        yield


@pytest.fixture
def set_threads():
    """Give torch so many threads until the test ends."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def never_still(monkeypatch):
    """A joint stage goes on where clusters do not change: those of small and clear sets never do."""
    monkeypatch.setattr("viewfuse.methods.urrl.stages._STILL", 0.0)


@pytest.fixture
def three_scalings(monkeypatch):
    """All views are scaled as a whole by "mixed", so that no two scalings do the same."""
    monkeypatch.setattr("viewfuse.data.scaling._CLEARLY", -np.inf)


@pytest.fixture(scope="module")
def quick_map():
    """For the rest of a module maps lack t-SNE and paint, each of which takes as long as a small fit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.plots.layout.plane", lambda points: points[:, :2].T)
        patch.setattr("matplotlib.figure.Figure.savefig", lambda self, path, **_: path.write_bytes(b"\x89PNG"))
        yield


UNSEARCHED = (
    "annotated", "caller", "careless", "categories", "changed_data", "checkpoint", "cli",
    "compare_sets", "decision_bench", "demo", "digits", "distributed_fit", "distributed_schedule", "docs", "drift",
    "effort", "empty_cells", "estimator", "explanation", "fitted_plots", "formulas", "gradients", "hints",
    "imputation_bench", "jobs", "maps", "memory", "memory_limits", "method_inputs", "method_settings", "model_memory",
    "naming", "new_kinds", "new_samples", "novelty", "numbering", "pairs", "paper_bench", "patterns_bench",
    "persistence", "progress", "real_gaps", "reduced_models", "refusals", "report_verb", "representatives", "resume",
    "run_folders", "serve", "serve_limits", "sharded_predict", "shards_literal", "sklearn_checks", "small_passes",
    "sparse", "update", "validate_verb", "weights", "wide_bench", "written_text",
)  # fmt: skip
"""Files about what is around a fit; that clusters are good does not matter there."""


@pytest.fixture(scope="module", autouse=True)
def _little_search(request):
    """In fast tests of these files k-means begins once or twice, and clusters are compared with one small Gaussian.

    No others are looked for in trees and graphs, as in very many samples, and no simple methods vote.
    """
    is_around = request.path.stem.removeprefix("test_") in UNSEARCHED
    if not is_around or not request.config.getoption("markexpr").startswith("not slow"):
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("viewfuse.selection.kmeans._DRAWN_STARTS", 2)
        patch.setattr("viewfuse.selection.kmeans._STARTS_BY_K", 1)
        patch.setattr("viewfuse.selection.kmeans._ROUNDS_BY_K", 4)
        patch.setattr("viewfuse.selection.split_tree._DRAWS", 2)
        patch.setattr("viewfuse.selection.rules._GAUSSIANS", 1)
        patch.setattr("viewfuse.selection.rules._ROWS", 20)
        patch.setattr("viewfuse.selection.linkage._TREE_ROWS", 0)
        patch.setattr("viewfuse.selection.linkage._GRAPH_ROWS", 0)
        patch.setattr("viewfuse.methods.urrl.consensus._ROWS", 0)
        yield


@pytest.fixture
def blobs():
    """Three well separated groups in three views of different widths, a third of the views missing."""
    return make_blobs(90, 3)


def make_blobs(n: int, n_clusters: int, widths=(5, 8, 3), missing: float = 0.3, seed: int = 0):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % n_clusters
    views = []
    for width in widths:
        centres = rng.normal(scale=4.0, size=(n_clusters, width))
        views.append((centres[labels] + rng.normal(size=(n, width))).astype(np.float32))
    mask = rng.random((n, len(widths))) >= missing
    mask[np.arange(n), rng.integers(len(widths), size=n)] = True
    for v, view in enumerate(views):
        view[~mask[:, v]] = np.nan
    return views, labels, mask


def write_tiny_plan(folder, plan):
    """A plan of experiments, tiny.toml, and the data set that it names, tiny.npz."""
    views, labels, _ = make_blobs(40, 2, missing=0.0)
    np.savez(folder / "tiny.npz", labels=labels, **{f"view_{v}": view for v, view in enumerate(views)})
    (folder / "tiny.toml").write_text(plan)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real data sets; they are not part of the project."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the folder of real data sets, which does not come with the project")
    return folder


@pytest.fixture(autouse=True, scope="module")
def _no_workers_left():
    """End joblib's workers with each file: a process with threads that forks, as the service does, may hang."""
    yield
    executor = getattr(sys.modules.get("joblib.externals.loky.reusable_executor"), "_executor", None)
    if executor is not None:
        executor.shutdown(wait=True, kill_workers=True)
