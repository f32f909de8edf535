"""Data that can be clustered, but may not be what they seem."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from viewfuse import URRL, Config, SuspiciousDataWarning, Views, read_views
from viewfuse.data import checks as suspicions
from viewfuse.data.checks import data_warnings, suspicious_columns


def tables(n=60, seed=0):
    rng = np.random.default_rng(seed)
    return {"rna": rng.normal(size=(n, 4)), "protein": rng.normal(size=(n, 3))}


def test_ordinary_data_give_no_remark():
    assert data_warnings(Views(tables())) == []
    rng = np.random.default_rng(0)
    assert data_warnings(Views([rng.poisson(0.3, size=(500, 30)), rng.exponential(size=(500, 5)) ** 2])) == []


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_a_value_below_zero_among_counts_is_named(make):
    counts = np.random.default_rng(0).negative_binomial(0.3, 0.02, size=(60, 30)).astype(float)
    assert data_warnings(Views({"rna": make(counts)})) == []
    counts[7, 4] = counts[9, 1] = -1e-9
    (line,) = data_warnings(Views({"rna": make(counts)}, ids=[f"p{i}" for i in range(60)]))
    assert line.startswith("rna: 2 of its values are below 0 (the first one in sample 7 (id 'p7'), column 4), while")
    whole = np.random.default_rng(0).integers(-1, 40, size=(60, 30)).astype(float)
    assert data_warnings(Views({"celsius": whole})) == []  # whole numbers without a tail
    assert data_warnings(Views({"rna": counts + 0.25})) == []


@pytest.mark.parametrize("value", [1e20, -999.0, -1e6])
def test_fill_values_are_noticed(value):
    data = tables()
    data["protein"] = np.abs(data["protein"])
    data["protein"][[3, 8, 20], 1] = value
    (line,) = data_warnings(Views(data))
    assert line == "protein, columns that have values so far out that they may stand for nothing, such as -999: '1'"


@pytest.mark.parametrize(("rows", "offset", "said"), [(0, 0, False), (1, 0, True), (20, 0, True), (7, 1e7, True)])
def test_rows_of_zeros_among_numbers_that_are_hardly_ever_zero_are_noticed(rows, offset, said):
    data = tables()
    data["rna"] = data["rna"] + offset
    data["rna"][:rows] = 0.0
    data["rna"][-5:, 0] = 0.0  # a zero here and there
    lines = [line for line in data_warnings(Views(data)) if "zero" in line]
    assert lines == [
        f"rna: {rows} of its 60 samples are zero in all columns, which is taken for data; "
        "if they lack the view, say so with a mask"
    ] * int(said)


def test_rows_of_zeros_among_many_zeros_are_noticed_where_they_are_many():
    counts = np.random.default_rng(0).poisson(0.5, size=(60, 20)).astype(float)
    counts[counts.sum(axis=1) == 0, 0] = 1.0
    for zero, width, said in ((6, 20, False), (7, 20, True), (7, 19, False)):  # few flags are often all zero
        counts[:zero] = 0.0
        lines = data_warnings(Views({**tables(), "n": counts[:, :width]}))
        assert any("are zero in all columns" in line for line in lines) is said


def test_a_column_of_numbers_may_be_zero():
    ages = np.arange(60.0)[:, None] % 30
    assert data_warnings(Views({**tables(), "age": ages})) == []


@pytest.mark.parametrize("kind", [int, str])
def test_rows_that_are_numbered_from_zero_and_from_one_are_noticed(kind):
    """As frames of Python and of R are: sample 3 of one would be sample 4 of the other."""
    rna, protein = (pd.DataFrame(table) for table in tables().values())
    rna.index = [kind(row) for row in range(60)]
    for start, ends in ((0, 60), (1, 60), (1, 61), (2, 62)):
        protein = pd.DataFrame(tables()["protein"][: ends - start], index=[kind(row) for row in range(start, ends)])
        lines = [line for line in data_warnings(Views({"rna": rna, "protein": protein})) if "numbered" in line]
        assert lines == [
            "the 60 rows of rna are numbered from 0 and those of protein from 1, and matched by these numbers; "
            "if they are the same samples, number them alike"
        ] * int((start, ends) == (1, 61))


def with_ids(**ids):
    return Views({name: pd.DataFrame(np.eye(len(own)), index=own) for name, own in ids.items()})


@pytest.mark.parametrize(
    ("form", "said", "pattern"),
    [("{}-01", "'-01' after them", r"^(.*?)(?:-01)?$"), ("lab_{}", "'lab_' before them", "^(?:lab_)?(.*)$")],
)
def test_ids_of_another_view_with_one_text_beside_them_are_noticed(tmp_path, form, said, pattern):
    plain = [f"TCGA-{i:04}" for i in range(30)]
    longer = [form.format(name) if i % 2 else name for i, name in enumerate(plain)]
    (line,) = [line for line in data_warnings(with_ids(a=plain, b=longer)) if "--id-pattern" in line]
    assert line == (
        f"view 'b' has ids such as {longer[1]!r}, view 'a' such as {plain[1]!r}: 15 of them differ only in {said}; "
        "if they are the same samples, write ids alike in all views, or read files with "
        f"--id-pattern '{pattern}' (in Python id_pattern)"
    )
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path, ids in zip(files, (plain, longer), strict=True):
        pd.DataFrame({"x": range(30)}, index=ids).to_csv(path, index_label="id")
    assert len(read_views(files)) == 45
    assert read_views(files, id_pattern=pattern).ids.tolist() == plain


@pytest.mark.parametrize(
    ("own", "others"),
    [
        (["1", "2", "10", "20"], ["3", "1", "100", "12"]),
        (["a", "b", "c-1"], ["a", "b", "c"]),  # one alone is by chance
        (["a", "b", "a-2", "b-2"], ["a", "b", "c"]),  # second samples of those that are there
        (["a", "b-1", "c-2", "d-3"], ["a", "b", "c", "d"]),
        (["x-1", "y-1", "z", *map(str, range(30))], ["x", "y", "z"]),  # few of many
    ],
)
def test_other_longer_ids_are_no_fault(own, others):
    assert not [line for line in data_warnings(with_ids(a=own, b=others)) if "--id-pattern" in line]


@pytest.mark.parametrize(("other", "shown"), [("acme-1 ", "acme-1"), ("Acme\u20131", "Acme\\u20131")])
def test_values_that_look_alike_are_noticed(other, shown):
    brands = pd.DataFrame({"brand": ["Acme-1", other, "Bolt"] * 20, "x = a": np.eye(60)[0]})
    (line,) = data_warnings(Views({"shop": brands, **tables()}))
    said = "look alike, and count as two values; spell them alike"
    assert line == f"shop: 'brand = Acme-1' and 'brand = {shown}' {said}"


def test_ids_among_the_values_are_noticed():
    data = tables()
    data["rna"][:, 2] = np.random.default_rng(0).permutation(60) + 100
    assert data_warnings(Views(data)) == ["rna, columns that count the rows, and may be ids: '2'"]


def test_columns_that_say_something_about_a_sample_are_told():
    """A clinical table given as a view split the clusters by plate, without a word."""
    rng = np.random.default_rng(0)
    clinical = pd.DataFrame({"age": rng.normal(size=60), "OS.time": rng.exponential(size=60), "batch": ["a", "b"] * 30})
    (line,) = data_warnings(Views({**tables(), "clinical": clinical}))
    assert line.startswith("clinical: 'OS.time', 'batch' may say something about a sample and not describe it")
    for cure in ("(--drop 'OS.time')", "leave the table out", "--batch", "--known", "--survival"):
        assert cure in line
    genes = [f"g{i}" for i in range(2_999)]
    wide = pd.DataFrame(rng.normal(size=(60, 3_000)), columns=[*genes, "Sample_ID"])
    (line,) = data_warnings(Views({"rna": wide}))
    assert line.startswith("rna: 'Sample_ID' may say")
    assert data_warnings(Views({"rna": wide.astype(pd.SparseDtype(float, 0.0))})) == []  # words may be columns there


@pytest.mark.parametrize(
    ("name", "told"),
    [("batch", True), ("Plate number", True), ("true_label", True), ("survival.days", True), ("OS_MONTHS", True),
     ("cluster", True), ("id", True), ("os_status", True), ("patient_id", True), ("TIME", True),
     ("event_rate", False), ("TIMELESS", False), ("CLASS2", False), ("ID1", False), ("os", False), ("days", False),
     ("age_group", False), ("time_1", False), ("batch-1", False), ("", False), ("status", False), ("ER_status", False)],
)  # fmt: skip
def test_names_of_columns_about_samples_are_whole_words(name, told):
    assert suspicions._is_about_a_sample(name) is told


def test_a_table_that_is_given_twice_is_told():
    data = tables()
    data["rna"][3] = np.nan  # a missing row
    data["rna"][5, 1] = np.nan  # an empty cell
    assert data_warnings(Views({**data, "copy": data["rna"].copy()})) == [
        "rna and copy are the same table, so it counts twice; leave one out"
    ]
    assert data_warnings(Views({**data, "other": np.where(data["rna"] > 0, data["rna"], 0.5)})) == []
    counts = sparse.csr_array(np.random.default_rng(0).poisson(0.5, size=(60, 20)).astype(float))
    assert data_warnings(Views({"a": counts, "b": counts.copy()})) == [
        "a and b are the same table, so it counts twice; leave one out"
    ]
    assert data_warnings(Views({"a": counts, "b": counts * 2})) == []


def test_a_view_that_never_changes_is_noticed_but_not_a_column():
    data = tables()
    data["rna"][:, 1] = 7.0
    assert data_warnings(Views(data)) == []
    data["rna"][:] = 7.0
    assert data_warnings(Views(data)) == [
        "rna: no column of this view ever changes, so it carries no information; leave it out"
    ]


@pytest.mark.parametrize(("common", "lines"), [(0, 2), (5, 2), (19, 2), (20, 0), (60, 0)])
def test_views_with_few_samples_in_common_are_noticed(common, lines):
    data, apart = tables(), (60 - common) // 2
    data["rna"][:apart] = np.nan
    data["protein"][60 - apart - (60 - common) % 2 :] = np.nan
    found = data_warnings(Views(data))
    assert len(found) == lines
    expected = "no sample has this view and another one" if not common else f"only {common} of its"
    assert all(expected in line for line in found)


def test_of_a_few_samples_nobody_can_say_what_is_far_out():
    assert data_warnings(Views([np.array([[1.0], [1.1], [1.2], [900.0]])])) == []


def test_hidden_rows_are_not_looked_at():
    data = tables()
    mask = np.ones((60, 2), dtype=bool)
    mask[:5, 0] = False
    data["rna"][:5] = 1e20
    assert data_warnings(Views(data, mask=mask)) == []


def test_of_many_rows_some_are_looked_at(monkeypatch):
    monkeypatch.setattr(suspicions, "_MOST_ROWS", 50)
    table = np.random.default_rng(0).normal(size=(1000, 2))
    table[::20, 1] = -1e9
    assert list(suspicious_columns(Views([table]), 0).values()) == [["1"]]


@given(st.integers(0, 2**32 - 1), st.integers(1, 30))
def test_any_data_can_be_looked_at(seed, n):
    rng = np.random.default_rng(seed)
    mask = rng.random((n, 2)) < 0.6
    mask[~mask.any(axis=1), 0] = True
    views = Views([rng.integers(-3, 3, size=(n, w)) * 10.0 ** rng.integers(-30, 30) for w in (1, 3)], mask=mask)
    assert all(isinstance(line, str) for line in data_warnings(views))


@pytest.mark.slow
def test_a_fit_warns_and_goes_on():
    data = tables()
    data["protein"][:] = 1.0
    small = {"config": Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=1, joint_epochs=0), "random_state": 0}
    with pytest.warns(SuspiciousDataWarning, match="protein: no column of this view ever changes"):
        model = URRL(2, **small).fit(data)
    assert model.labels_.shape == (60,)
