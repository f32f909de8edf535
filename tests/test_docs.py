"""Every code block of README and docs runs; pages are easy to read; every public name is shown at work."""

from __future__ import annotations

import re
import shutil
import warnings

import pytest

from doc_pages import DATA, PAGES, ROOT, TUTORIALS, Reader, blocks, prose

SHORT = {"embedding_dim": 16, "hidden_dim": 16}


def short(page) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """Where a reader works: an empty folder with the tables of the tutorials."""
    for table in DATA.glob("*.csv"):
        shutil.copy(table, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    yield tmp_path
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture
def hurry(monkeypatch):
    """Small networks that hardly train, so that a page takes a second; with `-m slow` pages run as they are."""
    from viewfuse import URRL, EmptyClusterWarning, JointStageWarning
    from viewfuse.methods.urrl.config import Config

    monkeypatch.setattr(Config, "epochs", lambda self, n: (3, 1))
    monkeypatch.setattr(URRL.__init__, "__kwdefaults__", URRL.__init__.__kwdefaults__ | SHORT)
    for category in (EmptyClusterWarning, JointStageWarning):
        warnings.simplefilter("ignore", category)


RUN = [page for page in PAGES if any(not block.reason for block in blocks(page.read_text()))]


@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore::UserWarning:mudata")
@pytest.mark.parametrize("page", RUN, ids=short)
@pytest.mark.usefixtures("desk", "hurry", "quick_map")
def test_code_blocks_run(page):
    Reader(page).follow(exact=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore::UserWarning:mudata")
@pytest.mark.parametrize("page", RUN, ids=short)
@pytest.mark.usefixtures("desk")
def test_code_blocks_show_what_the_pages_say(page):
    Reader(page).follow(exact=True)
