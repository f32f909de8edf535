"""How much more cores help: the same trainings on few and on many cores of one machine, one after the other.

`python -m benchmarks.studies.speed.cores` needs torch, numpy, scipy and scikit-learn only. It measures on the CPU, with
Handwritten and the mask .5/4:

- a fit with three starts under each scaling, as effort="thorough" makes it, with fewer epochs;
- twelve separate fits under one scaling, as a bench or a comparison makes them;
- steps of one training with 1, 2, 4, ... threads.

Each measurement is a process of its own that may use so many cores only (`sched_setaffinity`). With `--in-turn` the
first two also run in turn on the many cores, and their results are compared to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

FEW = 2


def main() -> None:
    """Measure, and print a table."""
    asked = options()
    if asked.child:
        print(json.dumps(CHILDREN[asked.child](asked)))
        return
    many = asked.many or len(os.sched_getaffinity(0))
    print(f"{many} cores against {FEW}; load before: {os.getloadavg()[0]:.1f}")
    for name in [one for one in ("twelve", "thorough") if asked.only in (None, one)]:
        few, much = (measured(name, cores, asked) for cores in (FEW, many))
        ratio = few["seconds"] / much["seconds"]
        line = f"{name}: {few['seconds']:.1f} s on {FEW}, {much['seconds']:.1f} s on {many} cores, {ratio:.2f} times"
        if asked.in_turn:
            alone = measured(name, many, asked, jobs=1)
            line += f"; in turn {alone['seconds']:.1f} s, same bits: {alone['digest'] == much['digest']}"
        print(line, flush=True)
    if asked.only not in (None, "step"):
        return
    counts = [threads for threads in (1, 2, 4, 8, 16) if threads <= many]
    steps = {threads: measured("step", threads, asked)["seconds"] for threads in counts}
    print("ms per step by threads: " + ", ".join(f"{n}: {1000 * seconds:.1f}" for n, seconds in steps.items()))


def options() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--many", type=int, help="cores to compare with two; by default all")
    parser.add_argument("--epochs", type=int, nargs=2, default=(6, 10), metavar=("FIRST", "SECOND"))
    parser.add_argument("--rows", type=int, default=2000, help="of Handwritten")
    parser.add_argument("--in-turn", action="store_true")
    parser.add_argument("--only", choices=tuple(CHILDREN))
    parser.add_argument("--child", choices=tuple(CHILDREN), help=argparse.SUPPRESS)
    parser.add_argument("--jobs", type=int, default=-1, help=argparse.SUPPRESS)
    return parser.parse_args()


def measured(name: str, cores: int, asked: argparse.Namespace, jobs: int | None = None) -> dict:
    """What a process with so many cores says."""
    mine = sorted(os.sched_getaffinity(0))[:cores]
    command = [
        sys.executable,
        __file__,
        "--child",
        name,
        "--epochs",
        *map(str, asked.epochs),
        "--rows",
        str(asked.rows),
    ]
    command += [] if jobs is None else ["--jobs", str(jobs)]
    settings = {"OMP_NUM_THREADS": str(cores), "GOMP_SPINCOUNT": "2000"}
    found = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, **settings},
        preexec_fn=lambda: os.sched_setaffinity(0, mine),
    )
    return json.loads(found.stdout.splitlines()[-1])


def handwritten(rows: int) -> list:
    """Its views, evenly thinned."""
    from viewfuse.datasets import load_handwritten

    return [view[:: 2000 // rows] for view in load_handwritten()[0]]


def fit(
    views: list, seed: int, starts: int, scaling: str, epochs: tuple[int, int], effort: str, n_jobs: int | None = None
) -> bytes:
    """Embedding of a fit; a function of the module of its own, so that workers find it."""
    import torch

    from viewfuse.data.views import Views
    from viewfuse.engine.replicates import replicate_seeds
    from viewfuse.fitted.model import Source
    from viewfuse.methods.urrl.config import Config
    from viewfuse.methods.urrl.fit import fit_models
    from viewfuse.missing import apply_mask, paper_mask
    from viewfuse.utils.jobs import threads_for

    mask = paper_mask(len(views[0]), len(views), 0.5, 4, random_state=seed)
    config = Config(n_clusters=10, effort=effort, pretrain_epochs=epochs[0], joint_epochs=epochs[1])
    seeds, cpu = [replicate_seeds(seed, starts)], torch.device("cpu")
    source = Source.of(Views(apply_mask(views, mask)))
    how = {"n_jobs": n_jobs, "threads": threads_for(starts, len(source.reduced))}
    (found,) = fit_models([source], config, scaling, seeds, cpu, **how)
    return found.embedding.numpy().tobytes()


def thorough(asked: argparse.Namespace) -> dict:
    """Three starts under each scaling."""
    views = handwritten(asked.rows)
    return timed(lambda: [fit(views, 0, 3, "auto", tuple(asked.epochs), "thorough", asked.jobs)])


def twelve(asked: argparse.Namespace) -> dict:
    """Twelve fits that have nothing to do with each other."""
    import cores

    from viewfuse.utils.jobs import run_jobs

    views, epochs = handwritten(asked.rows), (asked.epochs[0] // 2, asked.epochs[1] // 2)
    jobs = [(views, seed, 1, "standard", epochs, "auto") for seed in range(12)]
    return timed(lambda: run_jobs(cores.fit, jobs, asked.jobs))


def timed(work) -> dict:
    """Seconds of the work, and a checksum of what it gave."""
    from hashlib import sha256

    began = time.perf_counter()
    found = work()
    return {"seconds": time.perf_counter() - began, "digest": sha256(b"".join(found)).hexdigest()}


def step(asked: argparse.Namespace) -> dict:
    """Seconds of one step, the median of five epochs."""
    from statistics import median

    import torch

    from viewfuse.data.views import Views
    from viewfuse.engine.training import Training
    from viewfuse.fitted.model import Source, scaled_tensors, scalers_of
    from viewfuse.methods.urrl.config import Config
    from viewfuse.methods.urrl.stages import init_state, pretraining_stage
    from viewfuse.neighbors.index import index_training_set

    source = Source.of(Views(handwritten(asked.rows)), "neighbors", "auto")
    values, present = scaled_tensors(source.reduced, scalers_of(source, "standard")[0], torch.device("cpu"))
    training = Training([init_state(index_training_set(values, present, 9), Config(10), 0)])
    steps_of_epoch = training.begin(pretraining_stage(training, 1))
    steps, seconds = len(values[0]) // 64, []
    for epoch in range(6):
        began = time.perf_counter()
        steps_of_epoch.run(epoch)
        seconds.append((time.perf_counter() - began) / steps)
    return {"seconds": median(seconds[1:])}


CHILDREN = {"thorough": thorough, "twelve": twelve, "step": step}

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
