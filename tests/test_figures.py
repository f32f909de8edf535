"""Figures live under `results`: tables there follow from their csv, and README and docs state no other figure.

`STATED` has the sentences and rows that README, docs and the texts of `results` must have, each made from a csv: a
new figure needs a line there. A figure in docs that no line makes needs a link to `results` in its paragraph.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import mean, stdev

import pandas as pd
import pytest

from benchmarks import patterns
from benchmarks.clusters.experiment import OURS, read_choices
from benchmarks.clusters.summary import is_clear
from benchmarks.clusters.summary import summary as cluster_tables
from benchmarks.experiments import plans
from benchmarks.experiments import records as score_records
from benchmarks.experiments.catalogue import CATALOGUE, title_of
from benchmarks.experiments.choices import comparisons
from benchmarks.experiments.imputation import Filling, table_of
from benchmarks.experiments.records import read_records, read_rows
from benchmarks.experiments.tables import as_markdown, by_rate, make_tables, pooled
from benchmarks.studies.methods import table2

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
SETS = {
    "TCGA-BRCA": "tcga_brca150", "Caltech, re-extracted": "caltech7x200_reextracted", "Handwritten": "handwritten",
    "BDGP": "bdgp", "ProteinFold": "proteinfold", "Reuters": "reuters1200", "CITE-seq": "citeseq_inhouse1182",
    "LandUse21": "landuse21", "NGs": "ngs", "3Sources": "3sources", "Prokaryotic": "prokaryotic", "Scene15": "scene15",
    "3Sources, [real gaps](../results/real/README.md)": "3sources_partial", "miniACC, real gaps": "miniacc_partial",
}  # fmt: skip


def plain(text: str) -> str:
    """In one line, without bold."""
    return " ".join(text.replace("**", "").split())


@cache
def csv(name: str, *columns: str) -> pd.DataFrame:
    return pd.read_csv(RESULTS / name, names=list(columns) or None)


def spread(values: pd.Series, digits: int = 1) -> str:
    exact = [Decimal(repr(float(value))) for value in values]
    return " ± ".join(rounded(one, digits) for one in (mean(exact), stdev(exact)))


def rounded(value: Decimal, digits: int) -> str:
    """A half may be rounded either way, as floats are: {95.22/95.23}."""
    both = [str(value.quantize(Decimal(10) ** -digits, how)) for how in (ROUND_HALF_DOWN, ROUND_HALF_UP)]
    return both[0] if both[0] == both[1] else f"{{{both[0]}/{both[1]}}}"


def pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{([^/]*)/([^}]*)\\}", r"(?:\1|\2)", re.escape(plain(text))))


@cache
def records(file: Path) -> list:
    return read_records(file)


@cache
def choices() -> list:
    return read_choices(RESULTS / "clusters/clusters.csv")


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# --- tables that the code makes of a csv ---


def made_tables() -> Iterator[tuple[str, str]]:
    for file in [
        *sorted(RESULTS.glob("paper/*.csv")),
        *RESULTS.glob("real/*.csv"),
        RESULTS / "decisions/decisions.csv",
    ]:
        for table in make_tables(records(file)):
            yield str(file.parent.relative_to(RESULTS) / f"{table.name}.md"), as_markdown(table)
    yield "clusters/clusters.md", "\n".join(as_markdown(table) for table in cluster_tables(choices()))
    fillings = [Filling(*one) for one in csv("impute/impute.csv").itertuples(index=False)]
    yield "impute/impute.md", as_markdown(table_of(fillings))
    if (placed := RESULTS / "patterns/patterns.csv").exists():
        yield "patterns/patterns.md", as_markdown(patterns.table_of(read_rows(placed, patterns.Placed)))


@pytest.fixture(scope="module", autouse=True)
def _known_means():
    """Exact means take long, and tables ask three times for those of the same runs."""
    with pytest.MonkeyPatch.context() as patch:
        for known in (cache(mean), cache(stdev)):
            patch.setattr(score_records, known.__name__, lambda values, known=known: known(tuple(values)))
        yield


def test_tables_are_those_of_their_csv(monkeypatch):
    checked = []
    monkeypatch.setattr(plans, "read_plan", cache(plans.read_plan))  # it is asked for once per condition
    for name, text in made_tables():
        if (RESULTS / name).exists():  # one by rate, of decisions, is long and not kept
            assert (RESULTS / name).read_text() == text, name
            checked.append(name)
    assert len(checked) >= 13


def test_the_table_of_all_methods_is_that_of_its_csv(monkeypatch):
    written = {}
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: written.update({path.name: text}))
    table2.main()
    assert written["table2.md"] == (RESULTS / "methods/table2.md").read_text()


def test_mean_ranks_are_those_of_the_csv(monkeypatch, capsys):
    module = runpy.run_module("benchmarks.studies.methods.ranks")
    module["rank"].__globals__["draw_critical_difference"] = lambda *_, **__: None
    module["main"]()
    four, ten = re.split(r"^\d+ sets, .*$", capsys.readouterr().out, flags=re.M)[1:]
    text = plain((RESULTS / "methods/README.md").read_text())
    for part in (ten, four):
        found = [
            (re.sub(", KNN filled", "", name), rank) for name, rank in re.findall(r"  (.+): (\d\.\d\d)$", part, re.M)
        ]
        assert ", ".join(f"{name} {rank}" for name, rank in found) in text
        assert re.search(r"critical difference [\d.]+", part)[0] in text


# --- README ---


def accuracies(dataset: str, method: str) -> list[pd.Series]:
    """Of ten masks with half of the samples incomplete, or ten seeds with real gaps; ours of the last code."""
    files = (
        "decisions/decisions.csv", "decisions/peers.csv", "paper/table2.csv", "reduction/network.csv",
        "methods/table2_cpu.csv",
    )  # fmt: skip
    if CATALOGUE[dataset].gaps:
        one = csv("real/table2.csv")
        return [one[(one.dataset == dataset) & (one.method == method)].acc]
    if method == "urrl":
        one = csv("decisions/half.csv")
        return [one[one.dataset == dataset].acc]
    found = []
    for one in map(csv, files):
        own = one[(one.missing_rate == 0.5) & (one.dataset == dataset) & (one.method.str.lower() == method)]
        found += [own.acc] if len(own) == 10 else []
    return found


def test_the_table_of_accuracies_is_that_of_the_results():
    table = re.compile(r"^\| ([^|]+) \| (\d+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)
    rows, few = (table.findall(page.read_text()) for page in (ROOT / "docs/benchmarks.md", README))
    assert [name for name, *_ in rows] == [name for name in SETS if name != "Scene15"]
    assert len(set(few) & set(rows)) == len(few) == 5
    for name, samples, *shown in rows:
        assert int(samples) == CATALOGUE[SETS[name]].n
        best = [max(accuracies(SETS[name], method), key=pd.Series.mean) for method in ("urrl", "nemo", "kmeans-knn")]
        first = max(best, key=pd.Series.mean)
        error = [sqrt((first.var() + one.var()) / len(first)) for one in best]  # of the difference
        bold = ["**" if first.mean() - one.mean() <= 2 * sd else "" for one, sd in zip(best, error, strict=True)]
        cells = [f"{mark}{spread(one)}{mark}" for mark, one in zip(bold, best, strict=True)]
        assert shown == cells, name


# --- number of clusters ---


def chosen(belongs: Callable[..., bool], criterion: str = OURS) -> list:
    return [one for one in choices() if one.criterion == criterion and belongs(one)]


def hits(found: list, most: int = 0) -> str:
    return f"{mean(abs(one.chosen - one.true_k) <= most for one in found):.0%}".replace("%", " %")


def is_real(one) -> bool:
    return one.dataset in CATALOGUE


def is_synthetic(one) -> bool:
    return one.dataset not in CATALOGUE and one.true_k > 1


def number_of_clusters() -> Iterator[tuple[str, str]]:
    clear, synthetic, none = chosen(is_clear), chosen(is_synthetic), chosen(lambda one: one.true_k == 1)
    every = {name: chosen(lambda _: True, name) for name in (OURS, "gap", "silhouette", "BIC")}
    page, n = "docs/decisions.md", len(every[OURS])
    yield (
        page,
        f"within one of the number of classes in {hits(clear, 1)} of {len(clear)} cases, exact in {hits(clear)}.",
    )
    yield page, f"exact in {hits(synthetic)} of {len(synthetic)} sets."
    yield page, f"{sum(one.chosen > 1 for one in none)} of {len(none)} sets were given clusters."
    yield (
        page,
        (
            f"All {n} cases: exact in {hits(every[OURS])}, where the gap statistic has {hits(every['gap'])}, "
            f"silhouette {hits(every['silhouette'])} and the BIC {hits(every['BIC'])}"
        ),
    )
    wrong = [one.ari_at_true_k - one.ari for one in every[OURS] if one.chosen != one.true_k]
    yield page, f"(adjusted Rand index lower by {mean(wrong):.2f})"
    yield "results/clusters/README.md", f"lower by {mean(wrong):.3f} on average over the {len(wrong)} cells"


# --- what is decided ---

FIXED = {
    "standard scaling, no joint stage": "standard, no joint stage",
    "standard scaling, joint stage": "standard, joint stage",
    "mixed scaling, joint stage": "mixed, joint stage", "mixed scaling, no joint stage": "mixed, no joint stage",
    "min-max scaling, joint stage": "minmax, joint stage", "min-max scaling, no joint stage": "minmax, no joint stage",
    "k-means after KNN filling": "kmeans-knn", "NEMO": "nemo", "PIMVC": "pimvc",
}  # fmt: skip
SHORT = {
    "proteinfold": "ProteinFold", "handwritten": "Handwritten", "caltech7x200_reextracted": "Caltech",
    "movies": "Movies", "tcga_brca150": "TCGA-BRCA", "synthetic_duplicated_view": "a view twice",
    "synthetic_imbalanced": "20:1",
    "handwritten_noise_view": "Handwritten + noise", "synthetic_many_missing": "many missing",
}  # fmt: skip


def signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")


def decided() -> Iterator[tuple[str, str]]:
    found = csv("decisions/decisions.csv")
    found = found.assign(what=found.condition.where(found.method == "urrl", found.method))
    table = found.pivot_table(index=["dataset", "missing_rate", "seed"], columns="what", values="acc")
    for name, what in FIXED.items():
        less = (table["auto"] - table[what]).dropna().groupby("dataset").mean()
        ends = ", ".join(f"{signed(less[one])} ({SHORT.get(one, one)})" for one in (less.idxmin(), less.idxmax()))
        cells = str(len(less)), f"{signed(less.mean())} ± {less.std() / sqrt(len(less)):.1f}"
        for page in ("docs/decisions.md", "results/decisions/README.md"):
            yield page, row(name, *cells, ends)
    cells = list(comparisons(records(RESULTS / "decisions/decisions.csv")))
    best = mean(one.fixed[one.best].value - one.auto.value for one in cells)
    kept = min(mean(one.fixed[one.best].value - one.fixed[fixed].value for one in cells) for fixed in cells[0].fixed)
    yield (
        "docs/decisions.md",
        f"it is {best:.1f} points behind on average; the best of the six kept for all sets is {kept:.1f} behind.",
    )


# --- Handwritten ---


def handwritten() -> Iterator[tuple[str, str]]:
    page, names = "results/handwritten/README.md", ("device", "seed", "acc", "nmi", "ari", "seconds")
    first = csv("handwritten/fit.csv", *names)
    parts = [first[first.device == "cpu"], first[first.device != "cpu"], csv("handwritten/engine.csv", *names)]
    for part in parts:
        yield page, row(str(len(part)), *(spread(part[name], 2) for name in ("acc", "nmi", "ari")))
    for file in ("handwritten/standard.csv", "handwritten/auto.csv"):
        part = csv(file)
        seconds = f"{part.seconds.min():.0f} to {part.seconds.max():.0f}"
        yield page, row(str(len(part)), *(spread(part[name], 2) for name in ("accuracy", "nmi", "ari")), seconds)
    new = csv("handwritten/new.csv", "device", "seed", *"abcdefgh")
    yield page, row(str(len(new)), *(spread(new[name], 2) for name in "abcdefgh"))
    keep = csv("handwritten/keep.csv", "device", "seed", *"abcdefg")
    yield page, row("accuracy %", *(spread(keep[name], 2) for name in "abcdefg"))
    yield "docs/command-line.md", row("accuracy %", *(spread(keep[name]) for name in "bcdefg"))


def peers() -> Iterator[tuple[str, str]]:
    """The table "Beside peers": ours and k-means of Table 2, peers of imml; on TCGA-BRCA peers of this package."""
    ours, imml, own_peers = csv("paper/table2.csv"), csv("decisions/peers.csv"), csv("methods/table2_cpu.csv")
    names = ("Handwritten", "Scene15", "BDGP", "Caltech, re-extracted", "LandUse21", "CITE-seq", "TCGA-BRCA")
    for name in names:
        for rate in (0.25, 0.5, 0.75):
            here = ours[(ours.dataset == SETS[name]) & (ours.missing_rate == rate)]
            theirs = own_peers if name == "TCGA-BRCA" else imml
            there = theirs[(theirs.dataset == SETS[name]) & (theirs.missing_rate == rate)]
            own = here[(here.method == "urrl") & (here.setting == "default")].acc, here[here.method == "kmeans-knn"].acc
            by = there.method.str.upper()
            other = [spread(part) if len(part := there[by == one].acc) else "-" for one in ("NEMO", "PIMVC")]
            yield "results/README.md", row(name, f"{rate:g}"[1:], spread(own[0]), *other, spread(own[1]))


def empty_cells() -> Iterator[tuple[str, str]]:
    for how, part in csv("impute/cells.csv").groupby("fill"):
        yield "docs/command-line.md", row(f"`{how}`", *(f"{error:.2f}" for error in part.groupby("view").error.mean()))


ABLATIONS = {
    "modules": ("Table 3, modules", "KNNI+Aug+CDPE&TAM+CM"),
    "view-dropout": ("Table 4, view dropout", "phi_1 = 0.45"), "views": ("Table 5, number of views", "5 views"),
    "outputs": ("Table 6, outputs of the encoders", "NDE first, VDE mean"),
    "neighbors": ("Table 7, neighbours", "k = 4"),
}  # fmt: skip


def lines_of_the_paper() -> Iterator[tuple[str, str]]:
    """One row per table of the paper."""
    lines = [one for one in pooled("table2", records(RESULTS / "paper/table2.csv")) if one.method == "urrl"]
    for one in lines:
        difference = one.difference("acc")
        if difference is not None:
            cells = f"{one.ours['acc'].value:.2f}", f"{one.paper['acc'].value:.2f}", signed(difference)
            yield "docs/paper.md", row(f"Table 2, {SHORT.get(one.dataset, title_of(one.dataset))}", "`table2`",
                                       f"setting `{one.setting}`", *cells)  # fmt: skip
    for plan, (name, condition) in ABLATIONS.items():
        found = [one for one in by_rate(plan, records(RESULTS / f"paper/{plan}.csv")) if one.condition == condition]
        one = next(line for line in found if line.missing_rate == "0.5")
        cells = f"{one.ours['acc'].value:.2f}", f"{one.paper['acc'].value:.2f}"
        what = f"{SHORT.get(one.dataset, title_of(one.dataset))}, {condition}"
        yield "docs/paper.md", row(name, f"`{plan}`", what, *cells, "other data")


def peers_reduced_alike() -> Iterator[tuple[str, str]]:
    """Other methods behind the reduction of small sets, before and now; ours are the runs of Table 2."""
    theirs, ours = csv("reduction/peers.csv"), pd.concat([csv("paper/table2.csv"), csv("real/table2.csv")])
    ours = ours[(ours.method == "urrl") & (ours.setting == "default")]
    names = {("tcga_brca150", 0.0): "TCGA-BRCA, complete", ("tcga_brca150", 0.25): ".25",
             ("tcga_brca150", 0.5): ".5", ("tcga_brca150", 0.75): ".75",
             ("miniacc_partial", 0.53): "miniACC, real gaps"}  # fmt: skip
    for key, name in names.items():
        own = ours[(ours.dataset == key[0]) & (ours.missing_rate == key[1])].set_index("seed").acc
        cells = [name, spread(own)]
        for method in ("nemo", "pimvc", "kmeans-knn"):
            found = theirs[(theirs.dataset == key[0]) & (theirs.missing_rate == key[1]) & (theirs.method == method)]
            before, after = (found[found.commit == one].set_index("seed").acc for one in ("4fc9c0b6", "2ad4c4db"))
            less = f"({signed((own - after).mean())} ± {(own - after).sem():.1f})"
            cells.append(f"{spread(before).split(' ')[0]} → {spread(after)} {less}")
        yield "results/reduction/README.md", row(*cells)
    first = theirs[theirs.method == "urrl"].set_index("seed").acc
    gain = own - first  # the last key is miniACC
    yield "results/reduction/README.md", f"miniACC {signed(gain.mean())} ± {gain.sem():.1f}"


UNEQUAL = {
    "Handwritten 1:20": "handwritten_unequal", "Handwritten ~10": "handwritten~10", "BDGP ~10": "bdgp~10",
    "CITE-seq, a class cut to 5 %": "citeseq_cut", "Caltech ~10": "caltech7x200_reextracted~10",
    "Reuters ~8": "reuters1200~8", "3Sources": "3sources", "CITE-seq": "citeseq_inhouse1182",
}  # fmt: skip


def unequal_sizes() -> Iterator[tuple[str, str]]:
    runs, page = csv("sizes/linkage.csv").set_index(["dataset", "seed", "way"]), "results/sizes/README.md"
    scores, taken = runs[["acc", "macro", "ari"]], runs.chosen.xs("with", level="way") == "linkage"
    for name, key in UNEQUAL.items():
        own = scores.loc[key].groupby("way").mean()
        cells = [f"{x.acc:.1f} / {x.macro:.1f} / {x.ari / 100:.2f}" for x in (own.loc[w] for w in WAYS)]
        yield page, row(name, str(len(taken[key])), *cells, str(taken[key].sum()))
    gains = scores.xs("with", level="way") - scores.xs("without", level="way")
    sets = gains.groupby("dataset").mean()
    acc, macro, ari = (f"{signed(sets[one].mean())} ± {sets[one].sem():.1f}" for one in sets)
    yield page, f"taken in {taken.sum()} of {len(gains)} default fits"
    yield page, f"made {(gains.acc >= 2).sum()} of them better by two points and more"
    assert gains.acc.min() > -0.2
    assert (~taken.groupby("dataset").any()).sum() == 10
    yield page, f"{acc} points over {len(sets)} sets (macro accuracy {macro}, ARI {ari})"


WAYS = ("network", "without", "with")
STATED = (
    number_of_clusters, decided, handwritten, peers, empty_cells, lines_of_the_paper, peers_reduced_alike,
    unequal_sizes,
)  # fmt: skip


@cache
def stated(source: Callable[[], Iterator[tuple[str, str]]]) -> list[tuple[str, re.Pattern[str]]]:
    return [(page, pattern(text)) for page, text in source()]


@pytest.mark.parametrize("source", STATED, ids=lambda source: source.__name__)
def test_pages_state_what_the_csv_say(source):
    assert stated(source)
    lacking = [(page, text) for page, text in stated(source) if not text.search(plain((ROOT / page).read_text()))]
    assert not lacking


# --- no other figure ---

RULES = {
    "command-line.md": (
        "on 80 % of the samples",
        "less than 5 %",
        "up to 20 %",
        "30 % of a view, 80 % of a column, or 80 % of a row",
    ),
    "decisions.md": ("fewer than 0.75 %", "Clusters of which 95 %", "on 80 % of the samples", "has the 90 % interval"),
    "python.md": ("up to 20 %", "brand = Acme (62%; others 4%)"),
    "performance.md": ("3 % filled",),
    "reading-the-report.md": ("near 100 %",),
    "scale.md": ("30 % missing",),
}
"""Settings, and words about data and tables."""


def paragraphs(page: Path) -> list[str]:
    """Without code; a table belongs to the paragraph before it."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.M | re.S)
    return re.sub(r"\n\n+(?=\|)", "\n", text).split("\n\n")


def test_docs_state_no_figure_that_results_lack():
    for page in PAGES:
        own = str(page.relative_to(ROOT))
        made = [text for source in STATED for where, text in stated(source) if where == own]
        for paragraph in paragraphs(page):
            measured_by_tests = re.compile(r"^\|.*test_\w+\.py::.*$", re.M)
            left = plain(measured_by_tests.sub("", paragraph))
            for known in (*made, *map(pattern, RULES.get(page.name, ()))):
                left = known.sub("", left)
            assert "results/" in paragraph or not re.search(r"\d ?%|\d ± \d", left), (own, left)


def test_whose_clusters_are_kept_is_what_the_runs_say():
    runs, page = csv("decisions/chosen.csv"), (ROOT / "results/decisions/README.md").read_text()
    gains = pd.DataFrame({x: runs["final" + x] - runs["network" + x] for x in ("", "_macro", "_ari")})
    means = gains.groupby(runs.dataset).mean()
    whole = [f"{means[x].mean():+.1f} ± {means[x].sem():.1f}" for x in gains]
    assert "{} points of accuracy,\n{} of macro accuracy and {} of ARI over 32 sets".format(*whole) in page
    assert (len(means), len(runs)) == (32, 160)
    for name, own in gains.groupby(runs.chosen):
        title = {"consensus": "vote", "linkage": "average linkage"}.get(name, name)
        cells = re.search(rf"^\| {title} \| (.*) \|$", page, re.M)[1].replace("\N{MINUS SIGN}", "-").split(" | ")
        shown = [own[""].mean(), own[""].min(), own[""].max(), own["_macro"].mean(), own["_ari"].mean()]
        found = [cells[1], *cells[2].split(", "), *cells[3:]] if name != "network" else [0.0] * 5
        assert int(cells[0]) == len(own)
        assert [float(x) for x in found] == pytest.approx(shown, abs=0.0501)


def test_the_last_rules_are_what_the_runs_say():
    runs, page = csv("decisions/latest.csv"), (ROOT / "results/decisions/README.md").read_text()
    assert f"mean accuracy of 22 sets {runs.acc.mean():.1f}, macro accuracy {runs.macro.mean():.1f}" in page
    assert runs.groupby(["dataset", "missing_rate"]).size().tolist() == [5] * 66
