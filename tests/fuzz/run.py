"""Damage real files at random and read them: `python tests/fuzz/run.py --seconds 60 --workers 2`.

Every file must be read or be refused by one of our errors, within 30 s and within the memory that a reader may have.
A reader that was ended by a file, by a crash or by its limits, is no failure, but the file is kept: it shows that the
reader needs its own process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import resource
import sys
import tempfile
import time
import warnings
from collections import Counter
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from fuzz.seeds import write_seeds
from viewfuse import ViewfuseError
from viewfuse.io.isolated import process
from viewfuse.io.isolated.jobs import limits_of
from viewfuse.io.readers import open_source

FOUND = Path(__file__).parents[1] / "bad_files" / "found"
LONGEST = 30.0
ODD = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**40, 2**63 - 1, 2**64 - 1)
KEPT_OF_EACH = 4


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A file with one to six faults."""
    data = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 6]))):
        _damage(data, rng)
    return bytes(data)


def _damage(data: bytearray, rng: np.random.Generator) -> None:
    if len(data) < 2:
        return
    place = int(rng.integers(len(data)))
    end = min(len(data), place + int(rng.choice([1, 2, 4, 8, 32, 512])))
    match int(rng.integers(8)):
        case 0 | 1:
            data[place] ^= 1 << int(rng.integers(8))
        case 2:
            data[place] = int(rng.integers(256))
        case 3:
            width = int(rng.choice([1, 2, 4, 8]))
            data[place : place + width] = (ODD[int(rng.integers(len(ODD)))] % 2 ** (8 * width)).to_bytes(
                width, "little"
            )
        case 4:
            del data[place:end]
        case 5:
            data[place:place] = data[place:end]
        case 6:
            data[place:end] = bytes(end - place)
        case 7:
            other = int(rng.integers(len(data)))
            data[place:end] = data[other : other + end - place]


def outcome(path: Path) -> tuple[str, str]:
    """What reading a file ends in: "read", "refused", "ended" (the reader's process), "failed"; and words about it."""
    began = time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            open_source(path).read()
        kind, words = "read", ""
    except ViewfuseError as error:
        words = str(error)
        kind = "ended" if "crash, " in words or "s of computing" in words else "refused"
    except Exception as error:
        kind, words = "failed", f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - began
    return ("failed", f"took {seconds:.0f} s") if seconds > LONGEST else (kind, words)


def fuzz(task: tuple[int, float, str, str]) -> dict[str, Any]:
    """Read damaged files for so many seconds; how they ended, by format."""
    seed, seconds, folder, keep = task
    rng, ends = np.random.default_rng(seed), time.monotonic() + seconds
    seeds = [path for path in sorted(Path(folder).iterdir()) if path.is_file()]
    counts: Counter[str] = Counter()
    signs: Counter[str] = Counter()
    slowest, most = 0.0, most_memory(seeds)
    with tempfile.TemporaryDirectory() as own:
        while time.monotonic() < ends:
            seed_file = seeds[int(rng.integers(len(seeds)))]
            path = Path(own) / f"damaged{seed_file.suffix}"
            path.write_bytes(damaged(seed_file.read_bytes(), rng))
            began = time.monotonic()
            kind, words = outcome(path)
            slowest = max(slowest, time.monotonic() - began)
            counts[f"{seed_file.suffix} {kind}"] += 1
            sign = f"{seed_file.suffix} {kind} {words.replace(own, '').rsplit('(', 1)[-1][:60]}"
            if kind in ("ended", "failed") and signs.update([sign]) is None and signs[sign] <= KEPT_OF_EACH:
                _keep(path, Path(keep), kind)
    return {"counts": counts, "signs": signs, "slowest": slowest, "memory": peak_memory(), "most": most}


def most_memory(paths: list[Path]) -> float:
    """Megabytes that reading a damaged file may take: what whole files take, and the limit of a reader."""
    for path in paths:
        outcome(path)
    return peak_memory() + max(limits_of(path).n_bytes for path in paths) / 2**20


def peak_memory() -> float:
    """Megabytes that this process, or any reader that it had, held at most; its readers are gone then."""
    process.stop()
    peaks = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(peaks) / (2**20 if sys.platform == "darwin" else 2**10)


def _keep(path: Path, folder: Path, kind: str) -> None:
    content = path.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{kind}-{hashlib.sha256(content).hexdigest()[:10]}{path.suffix}.xz"
    (folder / name).write_bytes(lzma.compress(content, preset=9))


def main() -> None:
    """Fuzz with several processes, and say what came of it."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--workers", type=int, default=os.cpu_count())
    options.add_argument("--seed", type=int, default=None, help="the same seed damages the same files")
    options.add_argument("--keep", type=Path, default=FOUND, help="folder for files that end a reader")
    given = options.parse_args()
    first = given.seed if given.seed is not None else time.time_ns() % 2**32
    with tempfile.TemporaryDirectory() as folder:
        write_seeds(Path(folder))
        tasks = [(first + worker, given.seconds, folder, str(given.keep)) for worker in range(given.workers)]
        with get_context("spawn").Pool(given.workers) as pool:
            found = pool.map(fuzz, tasks)
    counts, signs = (sum((Counter(one[part]) for one in found), Counter()) for part in ("counts", "signs"))
    facts = {
        "seed": first,
        "files": counts.total(),
        "slowest": round(max(one["slowest"] for one in found), 1),
        "memory in MB": round(max(one["memory"] for one in found)),
        "memory at most": round(min(one["most"] for one in found)),
        "counts": dict(sorted(counts.items())),
    }
    print(json.dumps(facts | {"kept": dict(signs.most_common(20))}, indent=1))
    if any(one["memory"] > one["most"] for one in found):
        sys.exit("a reader took more memory than it may")
    sys.exit(any(key.endswith(" failed") for key in counts))


if __name__ == "__main__":
    main()
