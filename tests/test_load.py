"""Under load: many fits and predictions in one process, many threads, forked and spawned workers."""

from __future__ import annotations

import gc
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config
from sklearn.metrics import silhouette_score
from sklearn.model_selection import GridSearchCV

from conftest import make_blobs
from flat import flat
from viewfuse import URRL, Views

QUICK = {"pretrain_epochs": 2, "joint_epochs": 2, "scaling": "standard", "hidden_dim": 8, "embedding_dim": 4}


def quick(**changes: object) -> URRL:
    return URRL(3, **flat(**QUICK, **changes), random_state=0, device="cpu")


@pytest.fixture(scope="module")
def views():
    return Views(make_blobs(60, 3)[0])


@pytest.fixture(scope="module")
def fitted(views):
    return quick().fit(views)


def resident() -> int:
    """Bytes that this process holds in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth(work, times: int, warm_up: int) -> float:
    """By which share memory grows over so many repetitions, after some to warm up."""
    for _ in range(warm_up):
        work()
    before = resident()
    for _ in range(times):
        work()
    return resident() / before - 1


@pytest.mark.fault
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what is resident")
def test_thirty_fits_and_ten_thousand_predictions_keep_memory_flat(views, fitted):
    one = views[:1]
    by_fits = growth(lambda: quick().fit(views), 30, warm_up=5)
    by_predictions = growth(lambda: fitted.predict(one), 10_000, warm_up=500)
    print(f"30 fits {by_fits:+.2%}, 10,000 predictions {by_predictions:+.2%}")
    assert abs(by_fits) <= 0.02
    assert abs(by_predictions) <= 0.02


@pytest.mark.slow
def test_eight_threads_predict_what_one_does(views, fitted):
    alone = fitted.predict_proba(views)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: fitted.predict_proba(views), range(24)))
    assert all(np.array_equal(one, alone) for one in found)


def _probabilities(model: URRL, views: Views) -> np.ndarray:
    return model.predict_proba(views)


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing_predict_and_fit(views, fitted, start):
    with multiprocessing.get_context(start).Pool(2) as pool:
        found = pool.starmap(_probabilities, [(fitted, views)] * 4)
        again = pool.apply(quick().fit, (views,))
    assert all(np.array_equal(one, fitted.predict_proba(views)) for one in found)
    assert np.array_equal(again.embedding_, fitted.embedding_)


def score(model: URRL, part: Views, _: object = None) -> float:
    """On top of the module, since some workers get it pickled."""
    labels = model.predict(part)
    return silhouette_score(model.transform(part), labels) if len(set(labels)) > 1 else -1.0


@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["loky", "threading", "multiprocessing"])
def test_workers_of_joblib_search_a_grid(views, fitted, backend):
    with parallel_config(backend=backend, n_jobs=2):
        found = Parallel()(delayed(_probabilities)(fitted, views) for _ in range(4))
        search = GridSearchCV(quick(), {"config__batch_size": [16, 32]}, scoring=score, cv=2, error_score="raise").fit(
            views
        )
    assert all(np.array_equal(one, fitted.predict_proba(views)) for one in found)
    assert search.best_params_["config__batch_size"] in (16, 32)
