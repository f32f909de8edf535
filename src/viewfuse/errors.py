"""Every error that viewfuse raises on purpose. Messages say what is wrong, where, and what to do."""


class _Message(Exception):
    """A message in parts: text, and parameters whose spelling depends on the reader (`viewfuse.utils.settings`)."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts
        super().__init__("".join(map(str, parts)))


class ViewfuseError(_Message):
    """The one root: catch this to catch everything that viewfuse raises on purpose."""


class DataError(ViewfuseError, ValueError):
    """The data cannot be used as they are; the message names the place and the cure."""


class NotANumber(DataError, TypeError):
    """A cell holds something that is not a number."""


class SettingError(ViewfuseError, ValueError):
    """A parameter has a value that it cannot have."""


class Diverged(ViewfuseError, ArithmeticError):
    """Training gave a number that is not finite; the message names the epoch and the loss term."""


class NotEnoughMemory(ViewfuseError, MemoryError):
    """The data would not fit into memory; the message says how large they are and what to try."""


class CannotWrite(ViewfuseError, OSError):
    """A file cannot be written; what was there before is intact."""


class BadModelFile(ViewfuseError, ValueError):
    """A saved model is damaged, or is none."""


class CheckpointDiffers(ViewfuseError, ValueError):
    """A checkpoint is damaged, or belongs to another fit; the message says what differs."""


class WorkerLost(ViewfuseError, RuntimeError):
    """A job ended its process before it was done, or the process was lost several times."""


class MissingPackage(ViewfuseError, ImportError):
    """What was asked for needs a package that is not installed; the message names it."""


class EmptyClusterWarning(_Message, UserWarning):
    """Fewer clusters than asked for hold a sample."""


class EmptySampleWarning(_Message, UserWarning):
    """Samples of a file have no view at all, and are left out."""


class EmptyCellsWarning(_Message, UserWarning):
    """Rows that are there had empty cells, which were filled; the message counts them by view and column."""


class IgnoredColumnsWarning(_Message, UserWarning):
    """New samples have columns that the model was not fitted on; they are ignored."""


class SuspiciousDataWarning(_Message, UserWarning):
    """Data that can be clustered, but may not be what they seem: fill values, ids, constant views."""


class JointStageWarning(_Message, UserWarning):
    """The joint stage made the clusters worse, was ended, and the network is as it was before."""


class OutOfRangeWarning(_Message, UserWarning):
    """New samples lie far outside of what the model was fitted on; their clusters mean little."""
