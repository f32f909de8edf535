"""New samples as they come: columns in any order, too many or too few; files by another name; ids spelled otherwise."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from conftest import make_blobs
from viewfuse import URRL, Config, read_chunks, read_views
from viewfuse.cli import main, options
from viewfuse.data.alignment import read_alike
from viewfuse.data.categories import match_columns
from viewfuse.data.checks import data_warnings
from viewfuse.data.views import Views
from viewfuse.errors import DataError, EmptyCellsWarning, IgnoredColumnsWarning, SuspiciousDataWarning

TINY = {"config": Config(embedding_dim=16, hidden_dim=16, pretrain_epochs=4, joint_epochs=0), "scaling": "standard"}


def run(*arguments):
    return CliRunner().invoke(main, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def frames():
    views, _, _ = make_blobs(40, 2, widths=(10, 5), missing=0.0)
    ids = [f"p{i}" for i in range(40)]
    names = ("rna", "protein")
    return {
        name: pd.DataFrame(view, index=ids, columns=[f"{name}{c}" for c in range(view.shape[1])])
        for name, view in zip(names, views, strict=True)
    }


@pytest.fixture(scope="module")
def model(frames):
    return URRL(2, **TINY, random_state=0).fit(frames)


@given(seed=st.integers(0, 10_000))
def test_columns_stand_in_any_order(model, frames, seed):
    rng = np.random.default_rng(seed)
    shuffled = {name: frame[rng.permutation(frame.columns)] for name, frame in frames.items()}
    assert np.array_equal(model.complete(shuffled)[0].arrays[0], frames["rna"].to_numpy())
    in_order = [view.to_numpy() for view in frames.values()]
    assert all(map(np.array_equal, model.complete(list(shuffled.values()))[0].arrays, in_order))


def test_columns_too_many_are_ignored_with_one_warning(model, frames):
    more = {name: frame.assign(**{f"new_{name}": 1.0, "x": np.nan}) for name, frame in frames.items()}
    with pytest.warns(IgnoredColumnsWarning) as caught:
        labels = model.predict(more)
    assert np.array_equal(labels, model.labels_)
    (warning,) = caught
    assert str(warning.message) == (
        "columns that the model was not fitted on are ignored: rna 2 ('new_rna', 'x'); protein 2 ('new_protein', 'x')"
    )


def test_columns_too_few_are_empty_cells_up_to_a_bound(model, frames):
    fewer = {**frames, "rna": frames["rna"].drop(columns=["rna3", "rna7"])}
    with pytest.warns(EmptyCellsWarning, match=r"rna: 80 cells \(20.0%\) in columns 'rna3' \(40\), 'rna7' \(40\)"):
        labels = model.predict(fewer)
    assert np.array_equal(labels, model.labels_)
    with pytest.raises(DataError, match=r"lacks 3 of the 10 columns .*20%: 'rna0', 'rna3', 'rna7'; it has 'rna1'"):
        model.predict({"rna": fewer["rna"].drop(columns="rna0")})


def test_all_missing_names_are_listed_up_to_twenty():
    names = [f"g{i}" for i in range(60)]
    with pytest.raises(DataError, match=r"lacks 59 of the 60 .*: 'g0', .*'g19', ...; it has 'g59', 'y'"):
        match_columns("rna", ["g59", "y"], names)
    long = [f"ENSG0000000000{i}_probe_of_the_second_kind" for i in range(9)]
    with pytest.raises(DataError, match="'ENSG00000000008_probe_of_the_second_kind'; it has"):
        match_columns("rna", ["g59"], long)
    with pytest.raises(DataError, match="two columns of the new samples are called 'g1'"):
        match_columns("rna", ["g1", "g1", *names], names)
    assert match_columns("rna", ["a", "a"], ["a", "a"]).places is None


def test_who_has_values_in_ignored_columns_only_lacks_the_view(model, frames):
    rna = frames["rna"].assign(new=1.0)
    rna.loc["p1", rna.columns != "new"] = np.nan
    with pytest.warns(IgnoredColumnsWarning):
        complete, cells = model.complete({**frames, "rna": rna})
    assert complete.mask[:3].tolist() == [[True, True], [False, True], [True, True]]
    assert cells == []


def test_columns_of_sparse_views_are_matched_and_take_medians():
    rng = np.random.default_rng(0)
    table = rng.poisson(3.0, size=(30, 6)).astype(np.float32)
    table[:, 5] = 0
    names = [list("abcdef")]
    model = URRL(2, **TINY, random_state=0).fit(Views([sparse.csr_array(table)], columns=names))
    order = [4, 0, 5, 2, 3]
    new = Views([sparse.csr_array(table[:, order])], columns=[[names[0][c] for c in order]], mask=np.ones((30, 1)))
    complete, (cells,) = model.complete(new)
    assert cells.by_column() == {"b": 30}
    wanted = table.copy()
    wanted[:, 1] = np.rint(np.median(table[:, 1]))
    assert np.array_equal(complete.arrays[0].toarray(), wanted)


@pytest.fixture(scope="module")
def files(frames, model, tmp_path_factory):
    """A saved model, and new samples whose columns are shuffled, one too few and one too many."""
    folder = tmp_path_factory.mktemp("files")
    model.save(folder / "model")
    rng = np.random.default_rng(1)
    rna = frames["rna"].drop(columns="rna4").assign(novel=0.0)
    rna[rng.permutation(rna.columns)].to_csv(folder / "batch2.csv")
    frames["protein"].to_csv(folder / "protein.csv")
    return folder


@pytest.mark.filterwarnings("default")
def test_predict_streams_views_by_name_and_tells_once(files, model, monkeypatch):
    monkeypatch.setattr(options, "ROWS_AT_A_TIME", 7)
    given = (files / "model", f"rna={files / 'batch2.csv'}", files / "protein.csv")
    said = run("predict", *given, "--out", files / "labels.csv", "--force")
    assert said.exit_code == 0, said.output
    assert pd.read_csv(files / "labels.csv")["label"].tolist() == model.labels_.tolist()
    assert said.output.count("ignored: rna 1 ('novel')") == 1
    assert said.output.count("filled_cells") == 1
    assert "rna: 40 cells (10.0%) in columns 'rna4' (40)" in said.output
    for verb, out in (("embed", "z.npy"), ("impute", "filled")):
        said = run(verb, *given, "--out", files / out, "--json")
        assert json.loads(said.stdout)["filled_cells"]["rna"]["columns"] == {"rna4": 40}
    assert pd.read_csv(files / "filled" / "rna.csv", index_col=0).columns.tolist() == list(model._model.columns[0])


@pytest.mark.slow
def test_views_are_named_in_python_and_on_the_command_line(files, frames, tmp_path, monkeypatch):
    views = read_views({"protein": files / "protein.csv", "rna": files / "batch2.csv"})
    assert views.names == ("protein", "rna")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a=b.csv").write_text("id,x\n1,2\n")
    assert "a=b" in run("inspect", "a=b.csv").output  # a file that is called so
    shown = run("inspect", f"rna={files / 'batch2.csv'}", files / "protein.csv", "--json")
    assert [view["name"] for view in json.loads(shown.stdout)["views"]] == ["rna", "protein"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["inspect", "rna=nowhere.csv"], "rna=nowhere.csv: nowhere.csv is no file; check the path"),
        (["inspect", "rna=model"], "files can be named; give it without a name"),
        (["inspect", "rna=model/manifest.json"], "model/manifest.json: .json files are not read; give one .npz"),
        (["inspect", "protein=batch2.csv", "protein.csv"], "two files are called 'protein'; give each view a name"),
        (["inspect", "a=batch2.csv", "--block", "x=rna*"], "give it without a name"),
        (
            ["predict", "model", "batch2.csv", "--out", "o.csv"],
            "name the view of each file, VIEW=FILE, or leave it out",
        ),
    ],
)
def test_wrong_names_are_answered_in_one_line(files, monkeypatch, arguments, words):
    monkeypatch.chdir(files)
    said = run(*arguments)
    assert said.exit_code == 2
    (line,) = said.output.splitlines()
    assert words in line


def test_ids_that_read_alike_are_explained():
    assert read_alike([17, 5], ["017", "x"]) == [(17, "017")]
    assert read_alike(["A1 ", "b"], ["a1", "b"]) == [("A1 ", "a1")]
    assert read_alike([17.0], ["17"]) == [(17.0, "17")]
    assert read_alike(["17", "a"], ["17", "b"]) == []
    number = pd.DataFrame({"x": [1.0, 2.0]}, index=[17, 18])
    text = pd.DataFrame({"y": [1.0, 2.0]}, index=["017", "018"])
    with pytest.raises(DataError, match=r"'rna' has ids as numbers \(17\), view 'protein' as text \('017'\): 2 of"):
        Views({"rna": number, "protein": text})


@pytest.mark.parametrize(("own", "other"), [("P1", "P01"), ("s1", "s001"), ("s-1", "s1"), ("A-7-B", "a.07.b")])
def test_ids_with_zeros_before_a_number_read_alike(own, other):
    assert read_alike([own, "x"], [other, "x"]) == [(own, other)]


@pytest.mark.parametrize(("own", "other"), [("P1", "P10"), ("1.05", "1.5"), ("P100", "P1"), ("a-b", "ab")])
def test_ids_with_other_zeros_are_others(own, other):
    assert read_alike([own], [other]) == []


def test_ids_of_files_that_read_alike_are_told(tmp_path):
    pd.DataFrame({"x": range(30)}, index=[f"{i:03}" for i in range(30)]).to_csv(tmp_path / "rna.csv")
    pd.DataFrame({"y": range(30)}, index=[str(i + 90) for i in range(30)]).to_csv(tmp_path / "protein.csv")
    files = [tmp_path / "rna.csv", tmp_path / "protein.csv"]
    assert not any("written" in line for line in data_warnings(read_views(files, allow_disjoint=True)))
    pd.DataFrame({"y": range(30)}, index=[str(i) for i in range(30)]).to_csv(tmp_path / "protein.csv")
    lines = data_warnings(read_views(files, allow_disjoint=True))
    wanted = "view 'rna' has ids as text ('000'), view 'protein' as text ('0'): 30 of them differ only in how they are"
    assert any(line.startswith(wanted) for line in lines), lines
    with pytest.raises(DataError, match=re.escape(wanted)):
        read_views(files)


@pytest.mark.parametrize(
    "other",
    ["s\u2013{}", "s\u2011{}", "s\u2212{}", "s-\u200b{}", "\ufeffs-{}", "\uff33-{}", "s-{}\u00a0", "s\u00ad-{}"],
)
def test_ids_that_look_alike_are_told(other):
    frames = [pd.DataFrame(np.eye(20), index=[one.format(i) for i in range(20)]) for one in ("s-{}", other)]
    wanted = "20 of them differ only in how they are written"
    with pytest.raises(DataError, match=wanted):
        Views(frames)
    frames[1] = frames[1].rename(index={other.format(7): "s-7"})
    lines = data_warnings(Views(frames))
    wanted = f"view 'view_0' has ids such as 's-0', view 'view_1' such as {other.format(0)!a}: 19 of them"
    assert any(line.startswith(wanted) for line in lines), lines


@pytest.mark.parametrize(
    ("own", "other", "cure"),
    [("TCGA-{:02}", "TCGA.{:02}", "write ids with the same signs in all views (R: check.names = FALSE keeps them)"),
     ("{}", "X{}", "write ids with the same signs in all views (R: check.names = FALSE keeps them)"),
     ("TCGA-{:02}", "tcga-{:02}", "write ids alike in all views, with the same capitals")],
)  # fmt: skip
def test_ids_that_read_alike_are_told_once_with_the_right_cure(other, own, cure):
    """R's make.names writes - as a dot and 17 as X17; one of three views that is spelled otherwise is one fault."""
    frames = {name: pd.DataFrame(np.eye(30), [own.format(i) for i in range(30)]) for name in "abc"}
    frames["b"] = frames["b"].rename({own.format(i): other.format(i) for i in (3, 7)})
    (line,) = [line for line in data_warnings(Views(frames)) if "written" in line]
    pair = f"view 'a' has ids such as {own.format(3)!r}, view 'b' such as {other.format(3)!r}: 2 of them"
    assert line == f"{pair} differ only in how they are written; {cure}"
    frames["b"] = frames["b"].drop(own.format(2)).set_axis([other.format(i) for i in range(29)])
    with pytest.raises(DataError, match=re.escape(cure)):
        Views(frames)


def test_numbered_columns_in_another_order_are_put_in_order():
    assert match_columns("rna", [2, 0, 1], range(3)).places.tolist() == [1, 2, 0]
    assert match_columns("rna", range(3), range(3)).places is None
    assert match_columns("rna", ["a", "b", "c"], range(3)).places is None  # names of one side only


def numbered(first: int, n: int = 10, dtype: type = int) -> pd.DataFrame:
    """Every column holds a hundred times its number, and noise."""
    noise = np.random.default_rng(0).normal(size=(40, n))
    return pd.DataFrame(
        100.0 * np.arange(first, first + n) + noise, columns=[dtype(c) for c in range(first, first + n)]
    )


@pytest.mark.parametrize("dtype", [int, str, float])
def test_numbers_are_names_of_columns_like_any_other(dtype):
    known, given = Views({"rna": numbered(0)}), Views({"rna": numbered(1, dtype=dtype)})
    with pytest.warns(IgnoredColumnsWarning, match="rna 1 "):
        found = given.conform(known.names, known.columns, by_name=True).arrays[0]
    assert np.isnan(found[:, 0]).all()
    assert np.array_equal(np.rint(found[:, 1:] / 100), np.tile(np.arange(1.0, 10.0), (40, 1)))
    with pytest.raises(DataError, match="lacks 5 of the 10 columns"):
        Views({"rna": numbered(5, dtype=dtype)}).conform(known.names, known.columns, by_name=True)


def test_a_model_fitted_on_numbered_columns_knows_them_again(tmp_path):
    fitted = numbered(0)
    model = URRL(2, **TINY, random_state=0).fit({"rna": fitted})
    model.save(tmp_path / "model")
    with pytest.warns(IgnoredColumnsWarning), pytest.warns(EmptyCellsWarning):
        shifted = URRL.load(tmp_path / "model").impute({"rna": numbered(1)})["rna"]
    assert np.abs(shifted - fitted.to_numpy()).max() < 50  # a neighbour's column is 100 away
    numbered(0).iloc[:, ::-1].to_csv(tmp_path / "rna.csv", index_label="id")
    from_file = model.predict_proba(read_views(tmp_path / "rna.csv"))
    assert np.array_equal(from_file, model.predict_proba({"rna": fitted}))


@pytest.mark.parametrize(
    ("given", "fitted", "places"),
    [
        (range(3), [0, 1, 2], None),
        ([0, 1, 2], range(3), None),
        (range(3), ["a", "b", "c"], None),
        ([0, 1, 2], ["a", "b", "c"], None),  # a frame that was made of an array
        (["a", "b", "c"], [0, 1, 2], None),
        ([5, 6, 7], range(3), None),
        (["2", "0", "1"], range(3), [1, 2, 0]),
        ([3, 1, 2], ["1", "2", "3"], [1, 2, 0]),
        (["400.5", "410.0"], [410.0, 400.5], [1, 0]),
        ([1, "1", 2], ["1", 2], [1, 2]),
        (["1", 2], [1, 2], [0, 1]),
        ([0, 1, 2], [10, 20, 30], "lacks 3 of the 3"),
        ([10, 20, 30], [0, 1, 2], "lacks 3 of the 3"),
        ([0, 1, 2, 3], [0, 1, 2], "has 4 columns, but the model was fitted on 3"),
        (range(4), [7, 8, 9], "has 4 columns, but the model was fitted on 3"),
        (["01", "02"], [1, 2], "lacks 2 of the 2"),
    ],
)
def test_columns_are_matched_by_place_only_where_one_side_has_no_names(given, fitted, places):
    if isinstance(places, str):
        with pytest.raises(DataError, match=places):
            match_columns("rna", given, fitted)
        return
    found = match_columns("rna", given, fitted).places
    assert (found if found is None else found.tolist()) == places


APART = {"rna": slice(0, 3), "protein": slice(10, 12)}


def test_new_samples_may_have_one_view_each(model, frames):
    apart = {name: frames[name].iloc[rows] for name, rows in APART.items()}
    alone = [model.predict_proba({name: frame}) for name, frame in apart.items()]
    assert model.predict_proba(apart) == pytest.approx(np.concatenate(alone), abs=1e-5)
    assert model.transform(apart).shape[0] == 5
    assert model.impute(apart)["protein"].shape == (5, 5)
    samples = model.explain(apart).samples()
    assert len(samples) == 5
    assert Views(apart, allow_disjoint=True).ids.tolist() == ["p0", "p1", "p2", "p10", "p11"]
    counted = {name: frames[name].reset_index(drop=True).iloc[rows] for name, rows in APART.items()}
    assert np.array_equal(model.predict_proba(counted), model.predict_proba(apart))
    with pytest.raises(DataError, match="view 'rna' shares no row label with any other view"):
        URRL(2, **TINY).fit(apart)


@pytest.mark.parametrize(
    ("ids", "others", "words"),
    [
        (["7", "8", "9"], ["007", "010"], "differ only in how they are written"),
        (["a", "b", "c"], ["B ", "d"], "differ only in how they are written"),
        ([7, 8, 9], ["7", "x"], "differ only in how they are written"),
        ([7, 8, 9], ["x", "y"], "give all the same kind of sample ids"),
        ([("a", 1), ("a", 2), ("b", 1)], ["x", "y"], "give all the same kind of sample ids"),
    ],
)
def test_ids_apart_that_look_wrong_are_refused_for_new_samples_too(model, frames, ids, others, words):
    index = pd.MultiIndex.from_tuples(ids) if isinstance(ids[0], tuple) else ids
    given = {"rna": frames["rna"][:3].set_axis(index), "protein": frames["protein"][:2].set_axis(others)}
    with pytest.raises(DataError, match=words):
        model.predict(given)


@pytest.mark.parametrize(("form", "words"), [("P{:02}", "written"), ("p{}", "written"), ("P{}-a", "'-a' after them")])
def test_ids_of_new_samples_some_of_which_look_wrong_are_told(model, frames, form, words):
    """They were placed twice, once by each view."""
    ids = [f"P{i}" for i in range(20)]
    others = [form.format(i) if i in (3, 5, 7) else name for i, name in enumerate(ids)]
    given = {"rna": frames["rna"][:20].set_axis(ids), "protein": frames["protein"][:20].set_axis(others)}
    with pytest.warns(SuspiciousDataWarning, match=f"3 of them differ only in .*{words}"):
        assert len(model.predict(given)) == 23


def test_ids_that_look_wrong_are_told_though_no_chunk_has_both_spellings(frames, tmp_path):
    ids = [f"P{i}" for i in range(20)]
    frames["rna"][:20].set_axis(ids).to_csv(tmp_path / "rna.csv", index_label="id")
    frames["protein"][:20].set_axis([*ids[:17], "P017", "P018", "P019"]).to_csv(tmp_path / "b.csv", index_label="id")
    with pytest.warns(
        SuspiciousDataWarning, match=r"b\.csv: view 'rna' has ids as text .'P17'.* 3 of them differ only"
    ):
        assert sum(map(len, read_chunks([tmp_path / "rna.csv", tmp_path / "b.csv"], 5))) == 23


def test_arrays_of_differing_lengths_are_refused_with_the_cure(model, frames):
    bare = {name: frames[name].iloc[rows].to_numpy() for name, rows in APART.items()}
    with pytest.raises(DataError, match=r"'rna' has 3, 'protein' has 2.*DataFrames with the ids as index"):
        model.predict(bare)


@pytest.mark.usefixtures("quick_map")
def test_files_of_new_samples_may_be_apart(model, frames, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save("model")
    for name, rows in APART.items():
        frames[name].iloc[rows].to_csv(f"{name}.csv", index_label="id")
    for verb, out in (("predict", "labels.csv"), ("embed", "embedding.npy"), ("impute", "filled"), ("explain", "why")):
        found = run(verb, "model", "rna.csv", "protein.csv", "--out", out)
        assert found.exit_code == 0, found.output
    assert pd.read_csv("labels.csv")["id"].tolist() == ["p0", "p1", "p2", "p10", "p11"]
    assert sum(map(len, read_chunks(["rna.csv", "protein.csv"]))) == 5
    found = run("fit", "rna.csv", "protein.csv", "--clusters", "2", "--out", "run")
    assert found.exit_code != 0
    assert "share no id" in found.output
    frames["protein"].iloc[:2].set_axis(["P0", "P1"]).to_csv("protein.csv", index_label="id")
    found = run("predict", "model", "rna.csv", "protein.csv", "--out", "again.csv")
    assert found.exit_code != 0
    assert "differ only in how they are written" in found.output


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_filled_lies_within_what_was_measured_to_the_bit(seed):
    rng = np.random.default_rng(seed)
    mutations, there = (rng.random((90, 40)) < 0.1).astype(float), np.arange(90) % 3 != 0
    views = Views({"mutations": mutations, "rna": rng.normal(size=(90, 5))}, mask=np.c_[there, np.ones(90, dtype=bool)])
    config = Config(embedding_dim=8, hidden_dim=8, pretrain_epochs=30, joint_epochs=0, learning_rate=1e-2)
    filled = URRL(2, scaling="standard", random_state=0, config=config).fit(views).impute(views).arrays[0]
    assert (filled.min(), filled.max()) == (0.0, 1.0)


def test_zeros_before_the_number_of_some_ids_are_told():
    frames = {name: pd.DataFrame(np.eye(30), [f"P{i}" for i in range(30)]) for name in "ab"}
    frames["b"] = frames["b"].rename({"P3": "P03", "P7": "P07"})
    (line,) = [line for line in data_warnings(Views(frames)) if "written" in line]
    assert line == (
        "view 'a' has ids as text ('P3'), view 'b' as text ('P03'): 2 of them differ only in how they are written; "
        "write ids alike in all views, as text with all their zeros, say (pandas: dtype=str)"
    )
