"""A Ray whose workers are threads of this process, and which notes what it is asked for."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType

import joblib
from joblib._parallel_backends import ThreadingBackend


class RayBackend(ThreadingBackend):
    """Takes and pickles what that of Ray does, and has no generator either; its workers are threads."""

    supports_return_generator = False
    asked: dict = {}  # noqa: RUF012

    def __init__(self, nesting_level=None, inner_max_num_threads=None, ray_remote_args=None, **more):
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads, **more)
        self.ray_remote_args = ray_remote_args

    def configure(self, n_jobs=1, parallel=None, **more):
        self.asked.update(n_jobs=n_jobs, **self.ray_remote_args)
        return super().configure(self.effective_n_jobs(n_jobs), parallel)

    def submit(self, func, callback=None):
        return super().submit(pickle.loads(pickle.dumps(func)), callback)

    def effective_n_jobs(self, n_jobs):
        return 2 if n_jobs == -1 else super().effective_n_jobs(n_jobs)


class Ray(ModuleType):
    """A Ray that notes what it is asked for."""

    def __init__(self, *, running=False, answers=True, gpus=0):
        super().__init__("ray")
        self.events, self._running, self._answers, self._gpus = [], running, answers, gpus

    def is_initialized(self):
        return self._running

    def init(self, address, **ways):
        self.events.append(("init", address, ways["log_to_driver"]))
        if not self._answers:
            raise ConnectionError("nobody there\nwith details")

    def shutdown(self):
        self.events.append("shutdown")

    def cluster_resources(self):
        return {"CPU": 8.0, "GPU": float(self._gpus)} if self._gpus else {"CPU": 8.0}


def put(monkeypatch, **facts):
    """Let `import ray` find a new one."""
    ray, own = Ray(**facts), ModuleType("ray.util.joblib")
    own.register_ray = lambda: joblib.register_parallel_backend("ray", RayBackend)
    for name, module in {"ray": ray, "ray.util": ModuleType("ray.util"), "ray.util.joblib": own}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(RayBackend, "asked", {})
    return ray
