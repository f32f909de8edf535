"""How long a step takes is measured with the step that a fit makes."""

from __future__ import annotations

import torch

from viewfuse.methods.urrl import stages
from viewfuse.methods.urrl.config import Config


def test_a_step_is_that_of_a_fit_and_the_fastest_after_the_first(monkeypatch):
    times, seen = iter([0.0, 1.0, 10.0, 10.5, 20.0, 20.25, 30.0, 30.75]), []
    monkeypatch.setattr(stages, "perf_counter", lambda: next(times))
    begin = stages.Training.begin

    def look(self, stage):
        run = self.runs[0]
        seen.append((len(run.stored), [v.shape[1] for v in run.stored.values], run.method.config, stage.rate))
        return begin(self, stage)

    monkeypatch.setattr(stages.Training, "begin", look)
    asked, limited = [], stages.limited
    monkeypatch.setattr(stages, "threads_for", lambda starts, n: asked.append((starts, n)) or 1)
    monkeypatch.setattr(stages, "limited", lambda threads: asked.append(threads) or limited(threads))
    before = torch.get_num_threads()
    small = Config(n_clusters=3, batch_size=16, embedding_dim=8, hidden_dim=6)
    assert stages.measured_step([3, 5], small, 999) == 0.25
    assert seen == [(16, [3, 5], small.sized(999), 9e-4)]
    assert asked == [(1, 999), 1]  # one training has all the threads that a fit of so many samples has
    assert torch.get_num_threads() == before


def test_a_step_of_few_or_many_samples_has_their_size():
    small = Config(n_clusters=3, batch_size=16, embedding_dim=8, hidden_dim=6)
    assert all(stages.measured_step([3], small, n) > 0 for n in (1, 7, 5_000))
