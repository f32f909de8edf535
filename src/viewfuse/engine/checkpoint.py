"""Checkpoints of a fit: where a training stands, on disk, so that an interrupted fit can be resumed.

All that is random follows from seeds and epoch numbers, so weights, the moments of Adam and what was recorded are
enough: a resumed fit ends with the same numbers as one that was never interrupted, to the bit on a CPU with as many
threads. Each stage of each training is one file, which is replaced as a whole.
"""

from __future__ import annotations

import copy
import hashlib
import json
import signal
import threading
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import inf
from pathlib import Path
from tempfile import gettempdir
from types import FrameType, SimpleNamespace
from typing import Any
from uuid import uuid4

import torch
from torch import Tensor

from viewfuse.errors import CheckpointDiffers
from viewfuse.utils.atomic import parsed, write_file

_SECONDS_BETWEEN = 60.0
_LONGEST_PART = 100  # characters of a part of a file name; systems take 255 for the whole
FACTS = "fit.json"


def _clock() -> SimpleNamespace:
    """When the last file was written, and whether the user asked to stop."""
    return SimpleNamespace(written=time.monotonic(), stop=False)


class Checkpoint:
    """A folder that keeps the stages of one fit; None keeps nothing.

    `facts` must be the same for a fit to go on, by name: settings, data, versions.
    """

    def __init__(self, folder: Path | None = None, facts: Mapping[str, Any] | None = None) -> None:
        self._folder, self._prefix, self._clock = folder, "", _clock()
        self._stop_mark = Path(gettempdir()) / f"viewfuse-stop-{uuid4().hex}"  # asks workers of this fit to stop
        self._facts: dict[str, Any] = json.loads(json.dumps(dict(facts or {}), default=str))
        if folder is None:
            return
        try:
            changes = differences(dict(parsed((folder / FACTS).read_bytes())), self._facts)
        except FileNotFoundError:
            return
        except (OSError, TypeError, ValueError) as error:
            raise _unreadable(folder / FACTS, error) from error
        if changes:
            cure = "give what was given then, another folder, or delete this one"
            raise CheckpointDiffers(f"{folder} keeps another fit: {changes}; {cure}")

    def __getstate__(self) -> dict[str, Any]:
        """Another process has a clock of its own."""
        return {**self.__dict__, "_clock": _clock()}

    @property
    def whose(self) -> str:
        """A checksum of the facts, which all files of this fit have."""
        return hashlib.sha256(json.dumps(self._facts, sort_keys=True).encode()).hexdigest()

    def has_begun(self) -> bool:
        """Whether a fit keeps something there."""
        return self._folder is not None and (self._folder / FACTS).exists()

    def begin(self) -> None:
        """Write whose checkpoint it is, before anything else is kept."""
        if self._folder is not None and not self.has_begun():
            write_file(self._folder / FACTS, json.dumps(self._facts, indent=1).encode())

    def part(self, name: str) -> Checkpoint:
        """The same one for trainings of which others may have the same seeds."""
        own = copy.copy(self)
        own._prefix, own._clock = f"{name}-", self._clock  # a copy has a clock of its own, like another process
        return own

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Inside, the first Ctrl-C waits for the end of the epoch, which is kept; the second ends at once."""
        if self._folder is None or threading.current_thread() is not threading.main_thread():
            yield
            return

        def wait(number: int, frame: FrameType | None) -> None:
            self._clock.stop = True
            signal.signal(signal.SIGINT, before)
            self._stop_mark.touch()

        before = signal.signal(signal.SIGINT, wait) or signal.SIG_DFL  # None where Python did not set it
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            self._stop_mark.unlink(missing_ok=True)
        if self._clock.stop:  # there was no epoch to wait for
            raise KeyboardInterrupt

    def stage(self, name: str, runs: Sequence[Any], learner: Any, watches: Sequence[Any] = ()) -> KeptStage:
        """A stage of trainings that run side by side, as far as it is kept."""
        seeds = "-".join(str(run.seed) for run in runs)
        if len(seeds) > _LONGEST_PART:
            seeds = hashlib.sha256(seeds.encode()).hexdigest()[:32]
        file = f"{self._prefix}{name}-{seeds}.safetensors"
        return KeptStage(self, None if self._folder is None else self._folder / file, runs, learner, watches)

    def is_stopping(self) -> bool:
        """Whether the user asked to stop, in this process or in that of which this is a worker."""
        return self._clock.stop or self._stop_mark.exists()

    @property
    def is_due(self) -> bool:
        """Whether the last file is old enough."""
        return self.is_stopping() or time.monotonic() - self._clock.written >= _SECONDS_BETWEEN

    def written(self) -> None:
        """A file was written just now; stop here if the user asked for it."""
        self._clock.written = time.monotonic()
        if self.is_stopping():
            raise KeyboardInterrupt


class KeptStage:
    """One stage of trainings that run side by side, of a learner: what is trained (`network`) and by what (`adam`).

    `epoch` says how many epochs the trainings have had, where something was kept; else it is None.
    """

    def __init__(
        self, checkpoint: Checkpoint, path: Path | None, runs: Sequence[Any], learner: Any, watches: Sequence[Any]
    ) -> None:
        self._checkpoint, self._path, self._runs = checkpoint, path, runs
        self._learner, self._watches = learner, watches
        self.epoch: int | None = None
        self._end = inf
        if path is not None and path.exists():
            tensors, facts = _read_tensors(path)
            if not isinstance(facts, dict) or facts.get("fit") != checkpoint.whose:
                raise CheckpointDiffers(f"{path} is of another fit; delete the folder to train anew")
            learner.network.load_state_dict(below("network", tensors))
            states: dict[int, dict[str, Tensor]] = {}
            for name, value in below("adam", tensors).items():
                place, _, key = name.partition(".")
                states.setdefault(int(place), {})[key] = value
            adam = learner.adam
            adam.load_state_dict({**adam.state_dict(), "state": states})
            for run, known in zip(runs, facts["runs"], strict=True):
                run.history, run.diverged = known["history"], known["diverged"]
                for name, value in known["joint_stage"].items():  # JSON has no numbers as keys
                    own = {int(k): v for k, v in value.items()} if isinstance(value, dict) else value
                    setattr(run.joint_stage, name, own)
            for i, (watch, counters) in enumerate(zip(watches, facts["watches"], strict=True)):
                watch.counters = counters
                watch.weights = {name: x.to(runs[0].device) for name, x in below(f"best.{i}", tensors).items()}
                labels = tensors.get(f"labels.{i}")
                watch.labels = None if labels is None else labels.to(runs[0].device)
            self.epoch = facts["epoch"]

    def left(self, epochs: range) -> range:
        """Those that are still to come."""
        self._end = epochs.stop
        return epochs if self.epoch is None else range(self.epoch, epochs.stop)

    def keep(self, epoch: int, *, last: bool = False) -> None:
        """Write where the trainings stand after an epoch: if it is time, or the last one of the stage."""
        if self._path is None or not (last or self._checkpoint.is_due):
            return
        from safetensors.torch import save

        tensors = {f"network.{name}": x for name, x in self._learner.network.state_dict().items()}
        for i, watch in enumerate(self._watches):
            tensors |= {f"best.{i}.{name}": x for name, x in watch.weights.items()}
            tensors |= {} if watch.labels is None else {f"labels.{i}": watch.labels}
        if epoch < self._end:  # Adam's moments, unless the stage is over
            for i, state in self._learner.adam.state_dict()["state"].items():
                tensors |= {f"adam.{i}.{name}": x for name, x in state.items()}
        facts = {
            "fit": self._checkpoint.whose,
            "epoch": epoch,
            "runs": [
                {"history": r.history, "diverged": r.diverged, "joint_stage": asdict(r.joint_stage)} for r in self._runs
            ],
            "watches": [watch.counters for watch in self._watches],
        }
        self._checkpoint.begin()
        own, text = {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}, json.dumps(facts)
        write_file(self._path, save(own, {"facts": text, "checksum": _checksum(own, text)}))
        self._checkpoint.written()


def differences(known: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """What was other when a fit began, in words; nothing where all is the same."""
    names = [name for name in {**known, **facts} if known.get(name) != facts.get(name)]
    return "; ".join(f"{name} was {known.get(name)}, is {facts.get(name)}" for name in names)


def below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names begin with a prefix and a dot, by the rest of their names."""
    return {name.removeprefix(f"{prefix}."): x for name, x in tensors.items() if name.startswith(f"{prefix}.")}


def is_ours(folder: Path) -> bool:
    """Whether a fit keeps a checkpoint there, or it is empty: a folder of this name may hold something else."""
    return (folder / FACTS).is_file() or not any(folder.iterdir())


def _checksum(tensors: Mapping[str, Tensor], facts: str) -> str:
    """Of names, kinds, shapes, numbers and facts: a fit is not resumed from a file whose bits were changed."""
    found = zlib.crc32(facts.encode())
    for name in sorted(tensors):
        numbers: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()
        what = f"{name} {tensors[name].dtype} {list(tensors[name].shape)}"
        found = zlib.crc32(numbers, zlib.crc32(what.encode(), found))
    return f"{found:08x}"


def _read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors of a file, and what it says of them; None where it says nothing."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            metadata, tensors = file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = metadata.get("facts", "null")
        if metadata.get("checksum") != _checksum(tensors, facts):
            raise ValueError("its checksum is wrong")
        return tensors, parsed(facts.encode())
    except (SafetensorError, OSError, TypeError, KeyError, ValueError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> CheckpointDiffers:
    return CheckpointDiffers(f"{path} cannot be read ({error}); delete the folder to train anew")
