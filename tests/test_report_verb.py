"""viewfuse report: the page of a run, of a run beside what is known, of two runs; and one line where that cannot be."""

from __future__ import annotations

import json
import warnings

import pytest
from click.testing import CliRunner

from run_folders import trust_of, write_run
from viewfuse.cli import fit, main
from viewfuse.errors import NotEnoughMemory


def run(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    doubtful = trust_of("some", again=0.7, reasons=[{"name": "range_end", "number": 3}])
    return write_run(tmp_path_factory.mktemp("runs") / "run", n=30, decisions={"trust": doubtful})


def test_the_page_speaks_the_words_of_the_command_line(folder, tmp_path):
    made = run("report", folder, "--out", tmp_path / "page.html", "--json")
    assert made.exit_code == 0, made.output
    facts = json.loads(made.output)
    assert facts["bytes"] == (tmp_path / "page.html").stat().st_size
    assert facts["tables"] == str(tmp_path / "page_data")
    text = (tmp_path / "page.html").read_text()
    assert "Let --cluster-range end at a larger number." in text


def test_pages_with_known_columns_and_of_two_runs(folder, tmp_path):
    (tmp_path / "known.csv").write_text("id,class\ns1,a\ns2,b\n" + "".join(f"s{i},a\n" for i in range(3, 31)))
    assert run("report", folder, "--known", tmp_path / "known.csv", "--out", tmp_path / "known.html").exit_code == 0
    assert "Of 30 samples whose class is known" in (tmp_path / "known.html").read_text()
    other = write_run(tmp_path / "other", n=30, seed=1)
    assert run("report", folder, other, "--out", tmp_path / "pair.html").exit_code == 0
    assert "of 30 moved" in (tmp_path / "pair.html").read_text()


def test_ids_of_known_columns_that_are_spelled_otherwise_are_noticed(folder, tmp_path):
    ids = [f"s{i}" if i % 3 else f"S{i}" for i in range(1, 31)]
    (tmp_path / "known.csv").write_text("id,class\n" + "".join(f"{name},a\n" for name in ids))
    with warnings.catch_warnings(action="always"):
        made = run("report", folder, "--known", tmp_path / "known.csv", "--out", tmp_path / "known.html")
    assert made.exit_code == 0
    assert "'s3' and 'S3' read alike, but are two samples; spell ids alike in both" in " ".join(made.output.split())


def test_a_page_is_not_overwritten_unless_told(folder, tmp_path):
    (tmp_path / "page.html").write_text("mine")
    refused = run("report", folder, "--out", tmp_path / "page.html")
    assert (refused.exit_code, (tmp_path / "page.html").read_text()) == (2, "mine")
    assert "exists already" in refused.output
    assert run("report", folder, "--out", tmp_path / "page.html", "--force").exit_code == 0


def test_tables_are_not_overwritten_unless_told(folder, tmp_path):
    mine = tmp_path / "page_data" / "clusters.csv"
    mine.parent.mkdir()
    assert run("report", folder, "--out", tmp_path / "page.html").exit_code == 0, "an empty folder is nobody's"
    (tmp_path / "page.html").unlink()
    mine.write_text("id,class\ns1,a\ns2,b\n")
    refused = run("report", folder, "--out", tmp_path / "page.html")
    assert (refused.exit_code, mine.read_text()[:8]) == (2, "id,class")
    assert f"{mine.parent} exists already, and the tables of the page go there" in refused.output
    assert not (tmp_path / "page.html").exists()
    for read in (mine, tmp_path / "link.csv"):
        if read != mine:
            read.symlink_to(mine)
        refused = run("report", folder, "--known", read, "--out", tmp_path / "page.html", "--force")
        assert (refused.exit_code, mine.read_text()[:8]) == (2, "id,class")
        assert "which is read; give another --out" in refused.output
    assert run("report", folder, "--out", tmp_path / "page.html", "--force").exit_code == 0
    assert mine.read_text()[:8] != "id,class"


def test_a_page_inside_of_its_run_can_be_written_again(tmp_path):
    own = write_run(tmp_path / "run", n=30)
    for force in ([], ["--force"]):
        assert run("report", own, "--out", own / "report.html", *force).exit_code == 0
    assert (own / "report_data" / "clusters.csv").exists()


def test_a_fit_is_not_lost_to_a_page_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    def refuse(*_, **__):
        raise NotEnoughMemory("reading labels.csv needs 9 bytes, but only 1 are free")

    monkeypatch.setattr(fit, "write_report", refuse)
    fit._write_report(tmp_path, "run")
    assert "report.html is not there: reading labels.csv needs 9 bytes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["report", "{tmp}", "--out", "{tmp}/a.html"],
            "holds no summary.json; give the folder that viewfuse fit wrote",
        ),
        (["report", "{run}/labels.csv", "--out", "{tmp}/a.html"], "labels.csv holds no summary.json; give the folder"),
        (["report", "{run}", "--out", "{tmp}/a.csv"], "the report is a page; give the ending .html"),
        (["report", "{run}", "{run}", "{run}", "--out", "{tmp}/a.html"], "a report is about one run"),
        (["report", "{run}", "--known", "{tmp}/none.csv", "--out", "{tmp}/a.html"], "none.csv is not there"),
        (["report", "{run}"], "Missing option '--out'"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(folder, tmp_path, arguments, message):
    said = run(*(one.format(tmp=tmp_path, run=folder) for one in arguments))
    assert said.exit_code == 2
    assert message in said.output
    assert len(said.output.strip().splitlines()) == 1
    assert not (tmp_path / "a.html").exists()


def test_clusters_that_follow_a_batch_are_named_first(folder, tmp_path):
    labels = dict(line.split(",")[:2] for line in (folder / "labels.csv").read_text().splitlines()[1:])
    rows = "".join(f"{name},{'p1' if label == '0' else 'p2'}\n" for name, label in labels.items())
    (tmp_path / "known.csv").write_text("id,plate\n" + rows)
    asked = ("report", folder, "--known", tmp_path / "known.csv", "--out", tmp_path / "page.html")
    assert run(*asked, "--batch", "plate").exit_code == 0
    text = (tmp_path / "page.html").read_text()
    assert "The clusters follow plate (adjusted mutual information" in text
    assert text.index("Fit again with plate as") < text.index("What sets the clusters apart most")
    refused = run(*asked, "--force", "--batch", "lane")
    assert (
        refused.exit_code,
        "no known column with classes is called 'lane'; those that are there: plate" in refused.output,
    ) == (2, True)
