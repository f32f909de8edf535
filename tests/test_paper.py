"""The paper in docs/paper: its numbers are those of results, its text has none of its own."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from benchmarks import RESULTS, paper
from benchmarks.experiments.records import read_records
from benchmarks.studies.methods import table2


@pytest.fixture(scope="module")
def numbers():
    return paper.numbers()


def test_numbers_can_be_written_and_every_one_of_the_text_is_there(numbers):
    json.dumps(numbers)
    for path in re.findall(r"#?\bn\.([a-z_]+(?:\.[a-z_]+)*)", paper.TEXT.read_text()):
        found = numbers
        for part in path.split("."):
            if not isinstance(found, dict):  # a method of typst, such as len
                break
            found = found[part]


def test_the_text_has_no_number_of_its_own():
    """But for missing rates, levels of tests, references, and what layout needs."""
    text = paper.TEXT.read_text()
    prose = re.sub(r"#(?:figure|set|show|let|place|if|for)\b.*", "", re.sub(r"^ +.*|^//.*", "", text, flags=re.M))
    prose = re.sub(r"#\(?[\w.]+(?:\([^)]*\))?", "", prose)
    left = re.findall(r"\d[\d.]*", re.sub(r"@\w+|Caltech101-7|Scene15|LandUse21|pair\.at\(\d\)|slice\(\d\)", "", prose))
    assert set(left) <= {"0.25", "0.5", "0.75", "5", "1", "0", "2"}, left


def test_accuracies_and_ranks_are_those_of_the_csv(numbers):
    runs = [one.acc for one in read_records(RESULTS / "decisions" / "decisions.csv")
            if (one.dataset, one.method, one.condition, one.missing_rate) == ("bdgp", "urrl", "auto", 0.5)]  # fmt: skip
    names, rows = numbers["methods"]["names"], numbers["methods"]["rows"]
    place = [row["set"] for row in rows].index("BDGP") + 1  # the second of three rates
    assert rows[place]["rate"] == "0.5"
    assert rows[place]["cells"][names.index("URRL")] == f"{np.mean(runs):.1f}"
    assert len(rows) == 3 * (len(table2.SETS) + len(table2.MORE_SETS))
    text = " ".join((RESULTS / "methods" / "README.md").read_text().split())
    for name, rank in numbers["ranks_half"]["pairs"]:
        assert f"{name.replace(', KNN filled', '').replace('Completer', 'COMPLETER')} {rank}" in text


def test_without_typst_it_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(paper, "OUT", tmp_path)
    monkeypatch.setattr(paper, "numbers", dict)
    monkeypatch.setattr(paper.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "typst", None)
    assert paper.main() == 2
    assert "pip install typst" in capsys.readouterr().err
