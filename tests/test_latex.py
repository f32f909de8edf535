"""Tables as LaTeX, and the paragraph for the methods section of a paper."""

from __future__ import annotations

import re
from dataclasses import asdict

from run_folders import write_run
from viewfuse import URRL, Config
from viewfuse.io.writers import as_latex, escaped
from viewfuse.report.page import write_report
from viewfuse.report.run_folder import read_run
from viewfuse.report.tables import methods_text

HOSTILE = r"50 % of a_b & c^2 {x} \input{secret} $y$ #1 ~ < >"


def test_no_text_is_a_command():
    safe = escaped(HOSTILE + "\n\x07")
    known = r"\\textbackslash\{\}|\\textascii\w+\{\}|\\[&%_#${}]|\$\\pm\$|\$[<>-]\$"
    assert not re.search(r"[\\&%_#${}~^<>\n\x07]", re.sub(known, "", safe))
    assert r"\textbackslash{}input\{secret\}" in safe


def test_a_table_has_the_rules_of_booktabs_and_numbers_at_the_right():
    made = as_latex(("method", "accuracy"), [("a & b", "91.0 ± 0.3"), ("c", "-")], "two\nmethods %")
    assert made.splitlines() == [
        "% two methods %", r"\begin{tabular}{lr}", r"\toprule", r"method & accuracy \\", r"\midrule",
        r"a \& b & 91.0 $\pm$ 0.3 \\", r"c & - \\", r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip


def test_signs_and_columns_of_numbers_one_by_one():
    assert escaped("~^<>\N{MINUS SIGN}±") == r"\textasciitilde{}\textasciicircum{}$<$$>$$-$$\pm$"
    rows = [("b", "\N{MINUS SIGN}1.5", "", "1,234", "7"), ("a", "+0.5", "3 ± 0.25", "-2", "-x")]
    made = as_latex(("v", "w", "x", "y", "z"), rows, "t").splitlines()
    assert made[1] == r"\begin{tabular}{lrrrl}"
    assert made[5:7] == [r"b & $-$1.5 &  & 1,234 & 7 \\", r"a & +0.5 & 3 $\pm$ 0.25 & $-$2 & -x \\"]


def test_tiny_and_huge_numbers_are_powers_of_ten():
    rows = [("1.5e-09", "e-9"), ("-2e+06", "1e-9x"), ("8.763e-34", "-")]
    made = as_latex(("p", "text"), rows, "t").splitlines()
    assert made[1] == r"\begin{tabular}{rl}"
    assert made[5:8] == [
        r"1.5$\cdot 10^{-9}$ & e-9 \\", r"$-$2$\cdot 10^{6}$ & 1e-9x \\", r"8.763$\cdot 10^{-34}$ & - \\",
    ]  # fmt: skip


def test_the_report_has_latex_tables_and_a_paragraph_to_paste(tmp_path):
    params = {"random_state": 3, "n_clusters": 3, "scaling": "auto", "hidden_dim": 99, "batch_size": None}
    folder = write_run(tmp_path / "run", n=70, views=("r_na", "protein"), params=params)
    data = write_report([folder], tmp_path / "page.html")
    made = (data / "clusters.tex").read_text()
    assert len(re.findall(r" \\\\$", made, re.M)) == 1 + 3
    assert r"has\_r\_na" not in made  # shares by view are in the CSV file: any number of views fits on a page
    assert not list(data.glob("samples.tex"))  # one line per sample is no table for a page
    text = (data / "methods.txt").read_text()
    for words in (
        "70 samples with 2 views (r_na, protein)", "% of samples complete", "number of clusters, 3, was set beforehand",
        "seed was 3;", "but for hidden_dim = 99.", "doi:10.1145/3637528.3671887",
    ):  # fmt: skip
        assert words in text
    page = (tmp_path / "page.html").read_text()
    assert "A paragraph for a paper" in page
    assert "page_data/methods.txt" in page


def test_no_setting_is_named_that_is_the_default(tmp_path):
    settings = {**URRL(random_state=5).get_params(deep=False), **asdict(Config())}
    folder = write_run(tmp_path / "run", n=20, params={name: settings[name] for name in settings if name != "config"})
    assert "The random seed was 5; all settings were the defaults of that version. No" in methods_text(read_run(folder))
