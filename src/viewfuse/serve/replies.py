"""What the process of a lane does with one request: read the body, ask the model, put it in words."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable
from functools import partial
from tempfile import gettempdir
from typing import TypeVar

from viewfuse import errors
from viewfuse.data.views import Views
from viewfuse.errors import DataError, MissingPackage, NotEnoughMemory, SettingError, ViewfuseError
from viewfuse.io.writers import as_json
from viewfuse.serve.answers import QUESTIONS, Answer
from viewfuse.serve.bodies import PARQUET, TEMPORARY, Asked, read_json, read_parquet
from viewfuse.serve.limits import Busy, Limits, TooLarge, TooLong
from viewfuse.serve.opened import Opened
from viewfuse.serve.process import Facts

T = TypeVar("T")
MISTAKE = "the service made a mistake with this request; its log says more"
_STATUS = {
    TooLarge: 413, NotEnoughMemory: 413, DataError: 422, SettingError: 422, Busy: 503, TooLong: 504,
}  # fmt: skip
_WORDS = {
    rf"{re.escape(gettempdir())}\S*{TEMPORARY}\w+/body\.parquet": "the body",
    r"(, or if it is in order,|;) trusted=True .*": "",
    r" \(on the command line NAME=FILE\)": "",
    r"every view is None, so there is no sample; pass at least one array": "no view has a row; give at least one",
    r"blocks=\{.*\} takes": "naming it as a block in the address takes",
    r"<U\d+ values": "text",
    r"; use sys\.set_int_max_str_digits\(\) to increase the limit": "",
    r"\(NaN or masked everywhere\)": "(null everywhere)",
}
"""What is said to those who call Python, and what to those who send a body."""
_MOST_LETTERS = 2000
"""Of a sentence: names in it come from the body, and may be as long as that."""
_log = logging.getLogger(__name__)


def reply(opened: Opened, limits: Limits, facts: Facts, body: bytearray) -> tuple[Facts, bytes]:
    """Status, number of samples and text of the answer to `facts["question"]` about the samples of a body."""
    try:
        found, told = _recorded(partial(_answered, opened, limits, facts, body))
    except MissingPackage:
        return _said(501, "this service reads no Parquet, as it lacks a package for that; send JSON")
    except ViewfuseError as error:
        return _said(*sentence(error))
    except MemoryError:
        return _said(413, "the request does not fit into the memory of the service; send fewer samples")
    except Exception:
        _log.exception("a request failed")
        return _said(500, MISTAKE)
    return {"status": 200, "rows": len(found["ids"])}, as_json({**found, "warnings": told}).encode()


def sentence(error: ViewfuseError) -> tuple[int, str]:
    """The status that says who can do something about an error, and what is said to the caller."""
    return next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500), _in_our_words(str(error))


def _in_our_words(text: str) -> str:
    """A sentence of the package for somebody who sent a body: no path, no advice about Python, not too long."""
    for theirs, ours in _WORDS.items():
        text = re.sub(theirs, ours, text)
    return text if len(text) <= _MOST_LETTERS else f"{text[:_MOST_LETTERS]} ..."


def _said(status: int, detail: str) -> tuple[Facts, bytes]:
    return {"status": status, "rows": 0}, as_json({"detail": detail}).encode()  # also letters that UTF-8 lacks


def _answered(opened: Opened, limits: Limits, facts: Facts, body: bytearray) -> Answer:
    names = opened.fitted.view_names_
    if facts["kind"] == PARQUET:
        views: Views = read_parquet(body, limits, Asked(**facts["asked"]), names)
    else:
        views = read_json(body, limits, names)
    return QUESTIONS[facts["question"]](opened.fitted, views, limits)


def _recorded(work: Callable[[], T]) -> tuple[T, list[str]]:
    """What comes of some work, and what the package warned of meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = work()
    told: dict[str, None] = {}
    for one in caught:
        if one.category.__module__ == errors.__name__:
            told[_in_our_words(str(one.message))] = None
        else:
            _log.warning("%s: %s", one.category.__name__, one.message)
    return result, list(told)
