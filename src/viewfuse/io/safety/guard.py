"""What goes wrong inside the libraries that read files becomes one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from viewfuse.errors import DataError, NotEnoughMemory, SuspiciousDataWarning, ViewfuseError

_LONGEST_REASON = 200


@contextmanager
def guarded(path: Path) -> Iterator[None]:
    """Turn any error from reading `path` that is not one of ours into one that names the file.

    Libraries raise whatever comes up in the middle of a damaged file, so nothing narrower than Exception would do.
    """
    try:
        yield
    except (ViewfuseError, SuspiciousDataWarning):
        raise
    except MemoryError:
        raise NotEnoughMemory(f"{path} does not fit into memory; choose fewer columns, or reduce them first") from None
    except OSError as error:
        if error.filename is not None:
            raise DataError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None
        raise _unreadable(path, error) from None
    except Exception as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:_LONGEST_REASON]
    return DataError(f"{path} is no readable {path.suffix} file ({reason}); write it again")
