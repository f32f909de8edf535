"""Every error that viewfuse raises on purpose. Messages say what is wrong, where, and what to do."""


class ViewfuseError(Exception):
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


class EmptyClusterWarning(UserWarning):
    """Fewer clusters than asked for hold a sample."""


class EmptySampleWarning(UserWarning):
    """Samples of a file have no view at all, and are left out."""


class EmptyCellsWarning(UserWarning):
    """Rows that are there had empty cells, which were filled; the message counts them by view and column."""


class IgnoredColumnsWarning(UserWarning):
    """New samples have columns that the model was not fitted on; they are not looked at."""


class SuspiciousDataWarning(UserWarning):
    """Data that can be clustered, but may not be what they seem: fill values, ids, views that tell nothing."""


class JointStageWarning(UserWarning):
    """The joint stage made the clusters worse, was ended, and the network is as it was before."""


class OutOfRangeWarning(UserWarning):
    """New samples lie far outside of what the model was fitted on; their clusters mean little."""
