"""How far a fit is: one bar on a terminal, one line per stage elsewhere."""

from __future__ import annotations

import io
import re
import sys

import pytest

from conftest import make_blobs
from flat import flat
from viewfuse import URRL
from viewfuse.engine.training import SILENT, Progress
from viewfuse.utils.console import is_live, tell

TINY = {"embedding_dim": 8, "hidden_dim": 8, "batch_size": 32, "random_state": 0, "verbose": True}


@pytest.fixture
def terminal(monkeypatch, capsys):
    monkeypatch.setattr(type(sys.stderr), "isatty", lambda self: True)


@pytest.mark.slow
def test_a_terminal_gets_one_bar_with_all_epochs_of_the_fit(terminal, capsys):
    URRL(2, **flat(pretrain_epochs=3, joint_epochs=2, **TINY), effort="quick").fit(make_blobs(40, 2)[0])
    shown = capsys.readouterr().err
    assert "pre-training:   0%" in shown
    assert "joint training: " in shown
    assert set(re.findall(r"/(\d+) \[", shown)) == {"5"}
    assert "loss=" in shown
    assert "epochs in" not in shown


def test_what_is_expected_may_shrink(terminal, capsys):
    with Progress(shown=True) as progress:
        progress.expect(100)
        progress.begin("pre-training")
        progress.advance(0.5)
        progress.expect(1)
        progress.advance(0.4)
        progress.tell("a line that stays")
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "a line that stays" in shown


def test_a_long_fit_says_so_before_it_begins(monkeypatch, capsys):
    monkeypatch.setattr("viewfuse.methods.urrl.scaling_search._LONG", 1e-9)
    URRL(2, **flat(pretrain_epochs=1, joint_epochs=0, **TINY), scaling="standard").fit(make_blobs(40, 2)[0])
    assert capsys.readouterr().err.startswith("training takes up to about 2 minutes on this CPU\npre-training: 1 ")


def test_nothing_is_shown_unasked(terminal, capsys):
    SILENT.begin("pre-training")
    SILENT.advance(0.5)
    SILENT.tell("a line")
    with Progress() as progress:
        progress.begin("pre-training")
        progress.advance(0.5)
    assert not capsys.readouterr().err


class Full(io.StringIO):
    """A stream that takes nothing, as a full disk or a pipe that nobody reads."""

    def write(self, text):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("stream", [None, Full()])
def test_nobody_who_listens_costs_no_fit(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    tell("a line")
    assert not is_live()
    with Progress(shown=True) as progress:
        progress.expect(2)
        progress.begin("pre-training")
        progress.advance(0.5)
        progress.tell("it takes long")
