"""Tables say what is wrong before they are joined: no header, samples in columns, ids that do not match."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from test_readers import same
from viewfuse import DataError, SuspiciousDataWarning, Views, read_chunks, read_views
from viewfuse.io.readers.text import _are_labels
from viewfuse.io.source import _match

IDS = [f"p{i}" for i in range(30)]


def table(names, ids=IDS, seed=0) -> pd.DataFrame:
    return pd.DataFrame(np.random.default_rng(seed).normal(size=(len(ids), len(names))), index=ids, columns=names)


@pytest.fixture
def write(tmp_path):
    def to_file(name: str, content: str | pd.DataFrame):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else content.to_csv(index_label="id"))
        return path

    return to_file


@pytest.mark.parametrize("content", ["p1,5.1,3.5\np2,4.9,3\n", "1,5,0\n2,4,3\n", "p1,7,NA\np2,1,2\n", "p1,3\np2,4\n"])
def test_a_first_line_of_numbers_is_asked_about(write, content):
    path = write("rna.csv", content)
    with pytest.raises(DataError, match="header=False reads it as a sample, header=True as names"):
        read_views(path)
    found = read_views(path, header=False) if "NA" not in content else None
    if found is not None:
        assert found.ids.tolist() == [line.split(",")[0] for line in content.split()]
        assert found.columns[0] == range(found.widths[0])
    assert len(read_views(path, header=True)) == 1


def test_a_number_over_a_column_of_numbers_is_asked_about(write):
    with pytest.raises(DataError, match=r"begins with a number like the ids below it \('17', '18'\)"):
        read_views(write("rna.csv", "17,TP53,EGFR\n18,1,2\n"))


@pytest.mark.parametrize(
    "names", ["TP53,EGFR", "0,1,2", "1,2", "400,410,420,430,440,450", "9,7.5,6,5,4,1", "a,1,2", "0"]
)
def test_names_that_are_numbers_in_order_are_names(write, names):
    path = write("a.csv", f"id,{names}\np1{',1' * len(names.split(','))}\n")
    assert read_views(path).columns[0] == names.split(",")


@given(st.lists(st.floats(0.01, 1e6, allow_subnormal=False), min_size=2, max_size=8))
def test_measurements_in_no_order_are_never_names(values):
    in_order = sorted(values) in (values, values[::-1])
    counts = values == list(range(int(values[0]), int(values[0]) + len(values)))
    assert in_order or counts or not _are_labels(values)


def test_without_a_header_columns_have_no_names_to_ask_for(write):
    path = write("rna.csv", "p1,5.1,3.5\np2,4.9,3\n")
    for option in ({"id_column": "id"}, {"blocks": {"a": "g*"}}):
        with pytest.raises(DataError, match="with header=False they have no names; leave one out"):
            read_views(path, header=False, **option)
    with pytest.raises(DataError, match="has no names of columns, which would be the ids"):
        read_views(path, header=False, transpose=["rna"])


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_samples_in_columns_are_recognised_and_turned(tmp_path, write, ending):
    rna, protein = table(["TP53", "EGFR", "KRAS"]), table(["a", "b"], seed=1)
    first, second = tmp_path / f"rna{ending}", write("protein.csv", protein)
    turned = rna.T.rename_axis("gene")
    if ending == ".parquet":
        turned.to_parquet(first)
    else:
        turned.to_csv(first, sep="," if ending == ".csv" else "\t")
    with pytest.raises(
        DataError, match=r"rna\.\w+: 30 of the names of its 30 columns .*; transpose=\['rna'\] reads it"
    ):
        read_views([first, second])
    expected = Views({"rna": rna, "protein": protein})
    assert same(read_views([first, second], transpose=["rna"]), expected)
    assert list(read_views([first, second], transpose=["rna"]).columns[0]) == ["TP53", "EGFR", "KRAS"]
    assert len(list(read_chunks([first, second], 7, transpose=["rna"]))) == 5


def test_numbers_as_ids_in_the_first_line_are_no_question_where_it_holds_ids(write):
    numbers = [101, 7, 55, 3]
    paths = [write("rna.csv", table(["x", "y"], numbers).T), write("b.csv", table(["z"], numbers))]
    assert read_views(paths, transpose=["rna"]).ids.tolist() == ["101", "7", "55", "3"]


def test_all_tables_turned_and_two_parts_of_one_view_are_told_together(write):
    rna, protein = table(["TP53", "EGFR"]).T, table(["a", "b"], seed=1).T
    paths = [write("rna.csv", rna), write("protein.csv", protein)]
    with pytest.raises(
        DataError, match=r"share no id \(but 30 names of columns\).*transpose=\['rna', 'protein'\];.*one"
    ):
        read_views(paths)
    assert read_views(paths, transpose=["rna", "protein"]).widths == (2, 2)
    shifted = [f"x{i}" for i in range(5, 35)]
    protein.columns = shifted
    rna.columns = [f"x{i}" for i in range(30)]
    with pytest.raises(DataError, match=r"\(but 25 names of columns\)"):
        read_views([write("rna.csv", rna), write("protein.csv", protein)])


def test_a_view_to_turn_that_is_not_there(write):
    with pytest.raises(DataError, match="transpose names the view 'dna', but the views are rna"):
        read_views(write("rna.csv", table(["x"])), transpose=["dna"])
    twice = write("twice.csv", "gene,p1,p2\nTP53,1,2\nTP53,3,4\n")
    with pytest.raises(DataError, match="id 'TP53' appears twice"):
        read_views(twice, transpose=["twice"])


@pytest.mark.parametrize(
    ("common", "n", "refused"),
    [(0, 30, True), (0, 1, True), (1, 30, True), (2, 30, False), (4, 100, True), (5, 100, False)],
)
def test_ids_that_never_or_hardly_match_are_refused_with_examples(write, common, n, refused):
    mine = [f"p{i}" for i in range(n)]
    theirs = mine[:common] + [f"P-{i}" for i in range(n - common)]
    paths = [write("rna.csv", table(["x"], mine)), write("protein.csv", table(["y"], theirs))]
    assert len(read_views(paths, allow_disjoint=True)) == 2 * n - common
    if not refused:
        assert len(read_views(paths)) == 2 * n - common
        return
    shared = f"share {common} of {n} ids" if common else "share no id"
    with pytest.raises(
        DataError, match=rf"{shared}: 'p{common}'.* against 'P-0'.*; if they are meant .*allow_disjoint=True"
    ):
        read_views(paths)


def test_a_small_table_inside_of_a_large_one_matches():
    large, small = dict.fromkeys(range(10_000)), dict.fromkeys(range(5))
    assert _match(large, small)
    assert _match(small, large)
    assert not _match(large, dict.fromkeys(range(9_999, 19_999)))
    assert _match(large, dict.fromkeys(range(9_980, 19_980)))


def test_a_third_table_is_compared_with_all_others(write):
    paths = [write("a.csv", table(["x"])), write("b.csv", table(["y"])), write("c.csv", table(["z"], ["q1", "q2"]))]
    with pytest.raises(DataError, match=r"c\.csv and .*a\.csv share no id: 'q1', 'q2' against 'p0'"):
        read_views(paths)


def test_a_frame_that_counts_its_rows_beside_one_with_ids_is_told():
    frames = {"rna": table(["x"]).reset_index(drop=True), "protein": table(["y"])}
    with pytest.warns(
        SuspiciousDataWarning, match=r"view 'rna' has row labels 0, 1, 2, .* 'protein' has ids such as 'p0'"
    ):
        assert Views(frames).ids.tolist() == IDS
    assert len(Views({"rna": frames["rna"].to_numpy(), "protein": frames["protein"]})) == 30
    assert len(Views({"rna": frames["rna"], "protein": frames["protein"].reset_index(drop=True)})) == 30


@pytest.mark.filterwarnings("ignore")  # of anndata's own
def test_a_turned_sparse_file_stays_sparse(tmp_path, write):
    rna, protein = table(["x", "y"]).clip(lower=0), write("protein.csv", table(["a"], seed=1))
    turned = AnnData(sparse.csr_matrix(rna.T), obs=pd.DataFrame(index=rna.columns), var=pd.DataFrame(index=IDS))
    turned.write(tmp_path / "rna.h5ad")
    paths = [tmp_path / "rna.h5ad", protein]
    with pytest.raises(DataError, match=r"transpose=\['rna'\]"):
        read_views(paths)
    found = read_views(paths, transpose=["rna"])
    assert sparse.issparse(found.arrays[0])
    assert np.allclose(found.dense().arrays[0], rna)
    assert found.columns[0] == ["x", "y"]


def test_a_labelled_table_without_rows_is_named():
    frames = {"a": pd.DataFrame(np.ones((3, 2)), index=list("xyz")), "b": pd.DataFrame(np.ones((0, 2)), index=[])}
    with pytest.raises(DataError, match="view 'b' has no rows; leave it out"):
        Views(frames)
