"""Columns of text: what becomes a category, what of it a model knows, how much it counts, and how reports say it."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flat import flat
from viewfuse import URRL, Views, load, read_views
from viewfuse.data.categories import (
    FEWEST,
    MOST_VALUES,
    blocks_of,
    category_of,
    conformed,
    is_value,
    match_columns,
    with_words,
)
from viewfuse.data.scaling import column_weights, fit_scaler, fit_whole_views
from viewfuse.data.side_information.known_labels import Hints
from viewfuse.data.views import without_rare
from viewfuse.errors import DataError, IgnoredColumnsWarning
from viewfuse.fitted.clusters import Difference
from viewfuse.report.tables import apart
from viewfuse.serve.bodies import read_json
from viewfuse.serve.limits import Limits

BRANDS = ["Bolt", " Acme", None, "Acme", "Écru", "Bolt", "Bolt"]
PRICES = [4.0, 1.5, 2.0, np.nan, 8.0, 16.0, 3.0]
FRAME = pd.DataFrame({"price": PRICES, "brand": BRANDS, "new": ["no", "Yes", None, "no", "no", "yes", "no"]})
COLUMNS = ["price", "brand = Acme", "brand = Bolt", "brand = Écru", "new"]
EXPECTED = np.array(
    [[4, 0, 1, 0, 0], [1.5, 1, 0, 0, 1], [2, 0, 0, 0, np.nan], [np.nan, 1, 0, 0, 0], [8, 0, 0, 1, 0], [16, 0, 1, 0, 1],
     [3, 0, 1, 0, 0]])  # fmt: skip


def test_a_frame_has_a_column_per_value():
    kinds = ["object", "category", "string", pd.ArrowDtype(pa.string()), pd.ArrowDtype(pa.large_string())]
    for frame in (FRAME.astype({"brand": kind}) for kind in kinds):
        views = Views({"shop": frame})
        assert views.columns == (COLUMNS,)
        assert np.array_equal(views.arrays[0], EXPECTED, equal_nan=True)
    asked = Views([pd.DataFrame({"x": [1, 2, 3], "code": pd.Categorical([2, 1, 2])})])
    assert asked.columns == (["x", "code = 1", "code = 2"],)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_files_are_read_like_frames(tmp_path, ending, capsys):
    frame = FRAME.set_index(pd.Index(list("abcdefg"), name="id")).reset_index()
    if ending == "parquet":
        pytest.importorskip("pyarrow")
        frame.astype({"brand": "category"}).to_parquet(tmp_path / "shop.parquet", index=False)
    else:
        frame.to_csv(tmp_path / "shop.csv", index=False)
    views = read_views(tmp_path / f"shop.{ending}", only=["price", "brand", "new"])
    assert views.columns == (COLUMNS,)
    assert np.array_equal(views.arrays[0], EXPECTED, equal_nan=True)
    assert "'brand' as categories" in capsys.readouterr().err
    blocks = {"a": ["new", "price"], "b": "br*"}
    parts = read_views(tmp_path / f"shop.{ending}", blocks=blocks)
    assert parts.columns == (["new", "price"], COLUMNS[1:4])
    assert parts.mask.tolist() == [[True, one is not None] for one in BRANDS]  # c has no brand, so not the view


def test_a_value_is_one_however_its_accents_and_blanks_are_written(tmp_path):
    cells = ["\u00c9cru", "E\u0301cru ", "Bolt", "Bolt"]  # the accent is a part of the letter, or a sign of its own
    frame = pd.DataFrame({"brand": cells, "x": 1.0}, index=pd.Index(list("abcd"), name="id"))
    frame.to_csv(tmp_path / "shop.csv")
    rows = {"columns": ["brand", "x"], "values": frame.to_numpy().tolist()}
    for found in (
        Views({"shop": frame}),
        Views({"shop": frame.astype({"brand": "category"})}),
        read_views(tmp_path / "shop.csv"),
        read_json(json.dumps({"views": {"shop": rows}}).encode(), Limits(), ["shop"]),
    ):
        assert found.columns[0] == ["brand = Bolt", "brand = \u00c9cru", "x"]
        assert found.arrays[0].tolist() == [[0, 1, 1], [0, 1, 1], [1, 0, 1], [1, 0, 1]]
    assert Hints.of([*cells[:3], None], np.arange(4)).classes == ("Bolt", "\u00c9cru")
    matching = match_columns(
        "shop", ["brand = E\u0301cru", "gr\u00f6\u00dfe"], ["gro\u0308\u00dfe", "brand = \u00c9cru"]
    )
    assert matching.places.tolist() == [1, 0]


def test_rows_without_a_cell_lack_the_view(tmp_path):
    other = pd.DataFrame({"x": [1.0, 2, 3]}, index=list("abc"))
    frame = pd.DataFrame({"brand": ["Acme", None, "Bolt"], "size": [None, None, "XL"]}, index=list("abc"))
    assert Views({"shop": frame, "other": other}).mask[:, 0].tolist() == [True, False, True]
    frame.to_csv(tmp_path / "shop.csv", index_label="id")
    other.to_csv(tmp_path / "other.csv", index_label="id")
    assert read_views([tmp_path / "shop.csv", tmp_path / "other.csv"]).mask[:, 0].tolist() == [True, False, True]


REFUSED = {
    "text first": (["high", "1.5", "2"], "id 'a', column 'x': 'high' is not a number, unlike other cells"),
    "text later": (["1.5", "high", "2"], "id 'b', column 'x': 'high' is not a number"),
    "wells": (["1_1", "1_2", "1_1"], "id 'a', column 'x': '1_1' is not a number; .* begin all with a letter"),
    "shares": (["5%", "6%", "5%"], "'5%' is not a number"),
    "remarks": ([f"said {i}" for i in range(MOST_VALUES + 1)], "column 'x' has more than 256 different texts"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_text_that_is_no_category_is_refused(tmp_path, case):
    cells, words = REFUSED[case]
    lines = [f"{chr(97 + i % 26) * (1 + i // 26)},{cell}\n" for i, cell in enumerate(cells)]
    (tmp_path / "rna.csv").write_text("id,x\n" + "".join(lines))
    with pytest.raises(DataError, match=words):
        read_views(tmp_path / "rna.csv")
    with pytest.raises(DataError, match=r"is not a number|256 different|not real numbers|holds text"):
        Views({"rna": pd.DataFrame({"x": cells, "y": 1.0})})


def fitted(frame, n=24, **params):
    rng = np.random.default_rng(0)
    other = pd.DataFrame(rng.normal(size=(n, 3)), index=frame.index)
    settings = {"pretrain_epochs": 1, "joint_epochs": 0, "random_state": 0, "scaling": "standard", **params}
    return URRL(2, **flat(**settings)).fit({"shop": frame, "other": other}), other


@pytest.fixture(scope="module")
def shop():
    rng = np.random.default_rng(1)
    brands = ["Acme"] * 11 + ["Bolt"] * 9 + ["Zig", "Zig", "Zag", None]
    return pd.DataFrame({"price": rng.normal(50, 9, 24), "brand": brands}, index=[f"s{i}" for i in range(24)])


def test_rare_and_unseen_values_are_none(shop, tmp_path):
    model, other = fitted(shop)
    assert list(shop.brand).count("Zig") < FEWEST
    model.save(tmp_path / "model")
    for one in (model, load(tmp_path / "model")):
        frame = shop.iloc[[0, 20, 21]].assign(brand=["Acme", "Zig", "Quux"])
        views, _ = one.complete({"shop": frame, "other": other.iloc[:3].set_axis(frame.index)})
        assert views.columns[0] == ["price", "brand = Acme", "brand = Bolt"]
        assert views.arrays[0][:, 1:].tolist() == [[1, 0], [0, 0], [0, 0]]
        assert np.array_equal(one.predict({"shop": shop, "other": other}), model.labels_)
    with pytest.warns(IgnoredColumnsWarning, match=r"no value of the category 'brand' .*'brand = ACME'.*spelled alike"):
        model.complete({"shop": shop.iloc[:2].assign(brand="ACME")})
    with pytest.raises(DataError, match="column 'brand' holds numbers, but text when the model was fitted"):
        model.complete({"shop": shop.iloc[:2].assign(brand=7.0)})
    with pytest.raises(DataError, match="column 'price' holds text, but numbers when the model was fitted"):
        model.complete({"shop": shop.iloc[:2].assign(price="dear")})
    with pytest.raises(DataError, match=r"lacks 1 of the 2 columns .*: 'brand'"):
        model.complete({"shop": shop[["price"]].iloc[:2]})


def test_yes_and_no_are_known_beside_other_values(shop):
    model, _ = fitted(shop.assign(brand=["yes", "no", "former"] * 8))
    for brand, expected in (("yes", [0, 0, 1]), ("no", [0, 1, 0])):
        views, _ = model.complete({"shop": shop.iloc[[5]].assign(brand=brand)})
        assert views.arrays[0][0, 1:].tolist() == expected


def test_text_for_nothing_is_no_value_in_frames_files_and_bodies(tmp_path):
    cells = ["", "Acme", "NA", " n/a ", "Bolt"]
    frame = pd.DataFrame({"price": [4.0, 1.5, np.nan, 2.0, 8.0], "brand": cells}, index=list("abcde"))
    frame.to_csv(tmp_path / "shop.csv", index_label="id")
    values = [[None if pd.isna(price) else price, brand] for price, brand in frame.to_numpy().tolist()]
    views = {"shop": {"columns": ["price", "brand"], "values": values}, "x": [[1.0]] * 5}
    expected = [[4, 0, 0], [1.5, 1, 0], [0, 0, 0], [2, 0, 0], [8, 0, 1]]  # c has no cell, so not the view
    other = pd.DataFrame({"x": 1.0}, index=frame.index)
    other.to_csv(tmp_path / "x.csv", index_label="id")
    for found in (
        Views({"shop": frame, "x": other}),
        Views({"shop": frame.astype({"brand": "category"}), "x": other}),
        read_views([tmp_path / "shop.csv", tmp_path / "x.csv"]),
        read_json(json.dumps({"views": views}).encode(), Limits(), ["shop", "x"]),
    ):
        assert found.columns[0] == ["price", "brand = Acme", "brand = Bolt"]
        assert np.array_equal(found.arrays[0], expected)
        assert found.mask[:, 0].tolist() == [True, True, False, True, True]


def test_new_samples_may_have_no_value_at_all(shop):
    model, other = fitted(shop)
    for nothing in (np.nan, None, "", "NA"):
        frame = shop.iloc[[3, 15]].assign(brand=nothing)
        alone = other.iloc[[0]]  # a sample without the view, whose row is 0
        views, filled = model.complete({"shop": frame, "other": pd.concat([other.loc[frame.index], alone])})
        assert views.arrays[0][:2, 1:].tolist() == [[0, 0], [0, 0]]
        assert views.mask[:, 0].tolist() == [True, True, False]
        assert not filled


def test_categories_that_are_lost_or_spelled_otherwise_are_told(shop):
    wide = shop.assign(**{f"x{i}": shop.price + i for i in range(4)})
    model, _ = fitted(wide)
    lost = wide.drop(columns="brand").iloc[:3]
    with pytest.warns(IgnoredColumnsWarning, match=r"view 'shop': categories .* not there \('brand'\), so all samples"):
        model.complete({"shop": lost})
    with pytest.raises(DataError, match=r"not those of the model: categories .*'brand'.*; give the columns"):
        model.update({"shop": lost.rename(index="new {}".format)})
    with pytest.warns(IgnoredColumnsWarning, match="'brand = acme' is not known .* but 'brand = Acme' is; spell both"):
        model.complete({"shop": wide.iloc[:3].assign(brand=["Acme", "acme", "Bolt"])})
    with pytest.warns(IgnoredColumnsWarning, match="but 'brand = Acme' is; spell both"):
        model.complete({"shop": wide.iloc[:3].assign(brand=["Acme", "Ac\u200bme", "Bolt"])})


def test_numbers_called_like_values_are_matched_as_numbers(shop):
    doses = shop[["price"]].assign(**{f"dose = {i}": shop.price * i + 3 for i in range(1, 6)})
    model, _ = fitted(doses)
    views, filled = model.complete({"shop": doses.drop(columns="dose = 2").iloc[:4]})
    assert [(one.columns[place], count) for one in filled for place, count in enumerate(one.counts) if count] == [
        ("dose = 2", 4)
    ]
    assert (views.arrays[0][:, 2] != 0).all()
    with pytest.warns(IgnoredColumnsWarning, match=r"ignored: shop 1 \('dose = 9'\)"):
        model.complete({"shop": doses.assign(**{"dose = 9": 1.5})})


@pytest.mark.parametrize(
    "values",
    [[3, 1, 3, None, 2], ["1", "2", "1", "2", "2"], [0.5, 1.0, 1.0, None, 2.0], [True, False, True, True, None]],
)
def test_categories_of_pandas_are_the_same_in_parquet(tmp_path, values):
    """Those of whole numbers, which Parquet stores like any numbers, became numbers."""
    frame = pd.DataFrame({"stage": pd.Categorical(values), "x": np.arange(5.0)}, index=pd.Index([*"abcde"], name="id"))
    frame.to_parquet(tmp_path / "a.parquet")
    read, known = read_views(tmp_path / "a.parquet"), Views({"a": frame})
    assert read.columns == known.columns
    assert np.array_equal(read.arrays[0], known.arrays[0], equal_nan=True)
    many = pd.DataFrame({"stage": pd.Categorical(range(MOST_VALUES + 1)), "x": 1.0})
    many.set_index(many.index.astype(str)).to_parquet(tmp_path / "many.parquet")
    with pytest.raises(DataError, match="column 'stage' has more than 256 different texts"):
        read_views(tmp_path / "many.parquet")


WORDS_OF_TCGA = [
    "Not Available",
    "[Not Available]",
    "[Not Applicable]",
    "[Unknown]",
    "[Not Evaluated]",
    "not reported",
    "'--",
]


@pytest.mark.parametrize("word", WORDS_OF_TCGA)
def test_words_of_clinical_tables_for_nothing_are_empty_cells(tmp_path, word):
    """They were a value of their own, or refused among numbers."""
    ids = pd.Index([*"abcd"], name="id")
    frame = pd.DataFrame({"stage": [word, "II", "I", "II"], "kind": ["x", "y", word, "y"]}, index=ids)
    assert Views({"a": frame}).columns == (["stage = I", "stage = II", "kind = x", "kind = y"],)
    frame["age"] = ["61", word, "55.5", "70"]
    frame.to_csv(tmp_path / "a.csv")
    frame.to_parquet(tmp_path / "b.parquet")
    for file in ("a.csv", "b.parquet"):
        read = read_views(tmp_path / file)
        assert read.columns == (["stage = I", "stage = II", "kind = x", "kind = y", "age"],)
        assert np.array_equal(read.arrays[0][:, 4], [61, np.nan, 55.5, 70], equal_nan=True)


def test_names_of_samples_are_no_category(shop):
    with pytest.raises(DataError, match=r"view 'shop', column 'brand' has 24 different texts.*no category"):
        fitted(shop.assign(brand=[f"item {i}" for i in range(24)]))


def test_what_is_a_category_and_what_is_none():
    assert [is_value(cell) for cell in (" Acme", "É", "nan", "inf", "5%", "")] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    names = ("brand = Acme", "a = b = c", " = Acme", "brand", 7)
    assert [category_of(name) for name in names] == ["brand", "a", None, None, None]
    columns, present = ["x", "brand = A", "brand = B"], np.array([True, True, False])
    array = np.array([[5, 0, 1], [6, 1, 0], [np.nan] * 3])
    assert blocks_of(columns, array, present) == [[1, 2]]
    array[1, 2] = 2  # some of a kind are 0 and 1, which is not enough
    assert blocks_of(columns, array, present) == []


def test_words_and_empty_cells_become_the_columns_of_a_model():
    given = np.array([[7.0, 1, 3], [8, 0, 4], [9, np.nan, 5]])
    known = ["x", "new = former", "new = no", "new = yes", "y"]
    array, columns = with_words(given, np.array([True, True, True]), ["x", "new", "y"], known)
    assert columns == ["x", "new = no", "y", "new = yes"]
    assert array.tolist() == [[7, 0, 3, 1], [8, 1, 4, 0], [9, 0, 5, 0]]


def test_values_of_half_of_the_samples_must_be_frequent():
    frame = pd.DataFrame({"brand": [*["A"] * 3, "B", "C", "D"], "x": np.arange(6.0)})
    assert Views.of([frame]).columns == (["brand = A", "x"],)
    with pytest.raises(DataError, match="column 'brand' has 5 different texts"):
        Views.of([pd.DataFrame({"brand": [*frame.brand, "E"], "x": np.arange(7.0)})])


def test_columns_keep_their_offsets_beside_rare_values():
    """Rows that lack the view count nowhere, and what is left has its own offset."""
    array = np.array([[1, 0, 0.5], [1, 0, 0.25], [1, 1, 0], [1, 1, 0], [0, 1, 0]], dtype=np.float32)
    views = Views({"shop": pd.DataFrame(array, columns=["b = A", "b = B", "x"]), "other": np.ones((5, 1))})
    kept = without_rare(views.replace(offsets=(np.array([0.0, 0.0, 1e6]), 0.0)))
    assert [kept.columns[0], kept.offsets[0].tolist()] == [["b = A", "b = B", "x"], [0, 0, 1e6]]
    array[3, 1] = 0
    views = Views({"shop": pd.DataFrame(array, columns=["b = A", "b = B", "x"]), "other": np.ones((5, 1))})
    kept = without_rare(views.replace(offsets=(np.array([0.0, 0.0, 1e6]), 0.0)))
    assert [kept.columns[0], kept.offsets[0].tolist()] == [["b = A", "x"], [0, 1e6]]
    assert not kept.arrays[0].flags.writeable


def test_a_category_counts_as_one_number():
    rng = np.random.default_rng(0)
    values = rng.choice([f"v{i:02}" for i in range(20)], size=400, p=np.arange(1, 21) / 210)
    frame = pd.DataFrame({"dear": rng.normal(1000, 200, 400), "cheap": rng.uniform(5, 9, 400), "brand": values})
    views = Views.of({"shop": frame, "other": rng.normal(size=(400, 2))})
    n_values = sum(list(values).count(one) >= FEWEST for one in set(values))
    assert n_values < len(set(values))

    def parts(scaler):
        scaled = scaler.apply(views).arrays[0].astype(np.float64)
        assert scaled.shape[1] == 2 + n_values
        return scaled[:, 0], scaled[:, 1], scaled[:, 2:]

    for kind in ("standard", "mixed", "view"):
        dear, cheap, brand = parts(fit_scaler(views, kind))
        assert brand.var(axis=0).sum() == pytest.approx(1, abs=1e-4)
        assert np.allclose(brand.mean(axis=0), 0, atol=1e-4)
        assert (dear.var() + cheap.var()) / 2 == pytest.approx(1, abs=1e-4)
    for scaler in (fit_scaler(views, "minmax"), fit_whole_views(views)):
        dear, _, brand = parts(scaler)
        assert dear.max() == pytest.approx(1)
        one, other = (brand[np.argmax(values == value)] for value in ("v18", "v19"))
        assert np.linalg.norm(one - other) == pytest.approx(1)
    assert np.array_equal(parts(fit_scaler(views, "none"))[2], views.arrays[0][:, 2:])
    named = Views.of([pd.DataFrame(rng.normal(size=(9, 2)), columns=["dose = 1", "dose = 2"])])  # no values
    assert fit_scaler(named, "standard").apply(named).arrays[0].var(axis=0) == pytest.approx([1, 1], abs=1e-4)


def store(n=150, seed=0, **columns):
    """Three groups in two views with gaps; a table whose brand and weight follow the groups, colour and year do not."""
    rng = np.random.default_rng(seed)
    group = rng.permutation(np.repeat([0, 1, 2], [n - n // 2 - n // 5, n // 2, n // 5]))
    brand = np.where(rng.random(n) < 0.8, np.array(["Acme", "Bolt", "Coil"])[group], rng.choice(["Acme", "Écru"], n))
    table = {"colour": rng.choice(list("rgb"), n), "weight": 900 + 40.0 * group + 30 * rng.normal(size=n),
             "brand": brand, "year": rng.integers(1990, 2020, n).astype(float), **columns}  # fmt: skip
    image, text = (spread * (rng.normal(size=(n, 6)) + 4 * np.eye(6)[group]) + 70 for spread in (1e3, 1e-3))
    image[rng.random(n) < 0.2], text[rng.random(n) < 0.3] = np.nan, np.nan
    return {"table": pd.DataFrame(table), "image": image, "text": text}


def literal_confirmed(views, parts):
    """Per part of the first view whether the ten nearest in each other view, scaled or not, are alike in it."""
    table, alike = views.arrays[0].astype(float), {}
    for v in (1, 2):
        rows = [i for i in range(len(views)) if views.mask[i, 0] and views.mask[i, v]]
        own = {i: table[i] - table[rows].mean(axis=0) for i in rows}
        for scale in (views.arrays[v][rows].astype(float).std(axis=0), 1.0):
            points = {i: (views.arrays[v][i] / scale).tolist() for i in rows}
            for i in rows:
                near = sorted((math.dist(points[i], points[j]), j) for j in rows if j != i)[:10]
                alike.setdefault(i, []).append(np.mean([own[i] * own[j] for _, j in near], axis=0))
    each = np.array([np.mean(one, axis=0) for one in alike.values()])
    sums = [each[:, part].sum(axis=1) for part in parts]
    return [bool(own.mean() > 4 * own.std() / np.sqrt(len(own))) for own in sums]


def test_what_other_views_do_not_confirm_counts_a_quarter_beside_a_category_that_they_do():
    price = np.random.default_rng(9).normal(size=150)
    views = Views.of(store(price=price))
    parts = {"colour": [0, 1, 2], "weight": [3], "brand": [4, 5, 6, 7], "year": [8], "price": [9]}
    assert [str(name).split(" =")[0] for name in views.columns[0]] == [key for key, own in parts.items() for _ in own]
    confirmed = literal_confirmed(views, parts.values())
    assert confirmed == [False, True, True, False, False]
    table, *others = column_weights(views)
    for own, one in zip(parts.values(), confirmed, strict=True):
        assert table[own].tolist() == [2.125 if one else 0.25] * len(own)  # five count as much as five
    assert all((own == 1).all() for own in others)
    alone = Views.of({"table": store(price=price)["table"]})  # no view confirms anything
    for kind in ("standard", "minmax"):
        found, plain = (fit_scaler(one, kind).factors[0] for one in (views, alone))
        np.testing.assert_allclose(found, plain / np.sqrt(table))
    assert (fit_scaler(views, "none").factors[0] == 1).all()


def test_all_columns_count_the_same_where_no_category_is_confirmed():
    shuffled = np.random.default_rng(1).permutation(store()["table"].brand)
    assert (column_weights(Views.of(store(brand=shuffled)))[0] == 1).all()
    numbers = store()
    numbers["table"] = numbers["table"][["weight", "year"]]
    assert (column_weights(Views.of(numbers))[0] == 1).all()  # though one is confirmed
    few = store()
    few["image"][15:], few["text"][15:] = np.nan, np.nan
    assert (column_weights(Views.of(few))[0] == 1).all()


@pytest.mark.parametrize("seed", range(4))
def test_columns_of_noise_are_not_confirmed(seed):
    rng = np.random.default_rng([5, seed])
    noise = {f"c{k}": rng.choice(list("abcdefghijklmnopqrst")[:k], 150) for k in range(2, 21)}
    weights = column_weights(Views.of(store(seed=seed, **noise)))[0]
    columns = Views.of(store(seed=seed, **noise)).columns[0]
    assert {str(name).split(" =")[0] for name, own in zip(columns, weights, strict=True) if own > 1} == {
        "brand",
        "weight",
    }


@pytest.mark.slow
def test_the_brand_alone_tells_two_groups_apart():
    """Three groups: the embeddings tell the first from the others, which differ in nothing but the brand."""
    rng = np.random.default_rng(3)
    group = rng.permutation(np.repeat([0, 1, 2], [40, 35, 30]))
    n, kind = len(group), (group > 0)[:, None]
    brand = np.where(group == 1, "Acme", np.where(group == 2, "Bolt", rng.choice(["Acme", "Bolt", "Coil"], n)))
    table = pd.DataFrame({"price": rng.lognormal(3, 1, n), "brand": brand, "colour": rng.choice(list("rgbyk"), n)})
    image, text = (rng.normal(size=(n, 16)) + 3 * kind * rng.normal(size=16) for _ in range(2))
    image[rng.random(n) < 0.3] = np.nan
    small = {"embedding_dim": 32, "hidden_dim": 64, "pretrain_epochs": 15, "joint_epochs": 0}
    model = URRL(3, scaling="minmax", random_state=0, **flat(**small)).fit(
        {"table": table, "image": image, "text": text}
    )
    counts = pd.crosstab(group, model.labels_).to_numpy()
    assert counts.max(axis=1).sum() >= 0.97 * n
    assert len(set(counts.argmax(axis=1))) == 3


def test_the_report_says_shares():
    features = Difference(0, "shop", "brand = Acme", 2.1, 0.62, 0.04), Difference(0, "shop", "price", -1.0, 3.5, 7.25)
    assert apart(features, 0) == ["brand = Acme (62%; others 4%)", "low price in shop (3.5; others 7.25)"]


def test_bodies_of_requests_are_read_like_frames():
    rows = [
        None if all(pd.isna(row)) else [None if pd.isna(x) else x for x in row] for row in FRAME.to_numpy().tolist()
    ]
    body = {"views": {"shop": {"columns": list(FRAME), "values": [*rows, None]}, "x": [[1.0]] * 8}}
    views = read_json(json.dumps(body).encode(), Limits(), ["shop", "x"])
    assert views.columns[0] == COLUMNS
    assert np.array_equal(views.arrays[0][:7], EXPECTED, equal_nan=True)
    assert views.mask[:, 0].tolist() == [True] * 7 + [False]
    body["views"]["shop"]["values"][1][1] = 4
    with pytest.raises(DataError, match=r"column 1 \('brand'\): 'Bolt' is not a number"):
        read_json(json.dumps(body).encode(), Limits(), ["shop", "x"])


def test_ids_are_what_a_pattern_matches(tmp_path):
    (tmp_path / "rna.csv").write_text("id,x\nAAC-1,1\nAGT-1,2\n")
    (tmp_path / "protein.csv").write_text("id,y\nlane2_AGT,5\nlane2_AAC,6\n")
    files = [tmp_path / "rna.csv", tmp_path / "protein.csv"]
    for pattern in ("[ACGT]+", "(?:lane2_)?([ACGT]+)"):
        views = read_views(files, id_pattern=pattern)
        assert views.ids.tolist() == ["AAC", "AGT"]
        assert views.arrays[1].ravel().tolist() == [6, 5]
    with pytest.raises(DataError, match=r"rna\.csv: id 'AAC-1' does not match id_pattern 'lane'"):
        read_views(files, id_pattern="lane")
    with pytest.raises(ValueError, match=r"id_pattern '\(' is no regular expression"):
        read_views(files, id_pattern="(")
    with pytest.raises(ValueError, match=r"id_pattern 'A\{9+\}' is no regular expression"):
        read_views(files, id_pattern="A{99999999999999}")
    with pytest.raises(DataError, match="id 'A' appears twice"):
        read_views(files, id_pattern="A")


def test_a_pattern_without_an_end_is_ended(tmp_path, monkeypatch):
    """Each more a doubles the time: 40 of them take hours."""
    monkeypatch.setattr("viewfuse.io.source._SECONDS", 0.2)
    (tmp_path / "rna.csv").write_text(f"id,x\n{'a' * 40}!,1\nb,2\n")
    with pytest.raises(ValueError, match=r"id_pattern '\(a\+\)\+\$' was not compared with the ids of .*rna.csv in 0"):
        read_views(tmp_path / "rna.csv", id_pattern="(a+)+$")


@pytest.mark.parametrize("other", ["brand = Acme", "brand = Zeta"])
def test_a_column_called_like_a_value_of_a_text_column_is_refused(tmp_path, other):
    frame = FRAME.rename(columns={"price": other}).rename_axis("id")
    said = f"column '{other}' is called like a value of the text column 'brand'; rename one of them"
    frame.to_csv(tmp_path / "shop.csv")
    body = {"columns": list(frame), "values": frame.astype(object).where(frame.notna(), None).to_numpy().tolist()}
    for make in (
        lambda: Views({"shop": frame}),
        lambda: read_views(tmp_path / "shop.csv"),  # which names the file
        lambda: read_json(json.dumps({"views": {"shop": body}}).encode(), Limits(), ["shop"]),
    ):
        with pytest.raises(DataError, match=said):
            make()


def test_numbers_called_like_a_category_and_its_value_are_matched_by_name():
    frame = pd.DataFrame({"dose": [0.0, 1, 2, 3], "dose = 1": [0.0, 1, 0, 0], "x": [3.0, 1, 2, 5]})
    fitted = Views([frame])
    found = Views([frame[["x", "dose = 1", "dose"]]]).conform(fitted.names, fitted.columns, by_name=False)
    assert np.array_equal(found.arrays[0], fitted.arrays[0])


def test_a_request_with_no_text_but_yes_and_no_is_read():
    body = {"columns": ["new", "x"], "values": [["yes", 1], ["No", 2], [None, 3]]}
    views = read_json(json.dumps({"views": {"shop": body}}).encode(), Limits(), ["shop"])
    assert np.array_equal(views.arrays[0], [[1, 1], [0, 2], [np.nan, 3]], equal_nan=True)


def test_columns_that_are_added_or_moved_keep_what_each_is_measured_from():
    """New samples say yes or no where the model knows more: their columns come last, and are measured from zero."""
    given, fitted = ["x", "old", "c", "y"], ["y", "c = maybe", "c = no", "c = yes", "x"]
    array = np.array([[0.5, 7, 1, 3], [0.25, 7, 0, 4], [0.125, 7, 1, 5]])
    offset = np.array([1e9, 5.0, 0.0, 2e8])
    found, present, own, ignored = conformed("shop", array, np.ones(3, dtype=bool), offset, given, fitted)
    assert (found[:, [0, 2, 3, 4]].tolist(), present.tolist()) == (
        [[3, 0, 1, 0.5], [4, 1, 0, 0.25], [5, 0, 1, 0.125]], [True] * 3,
    )  # fmt: skip
    assert (own.tolist(), list(ignored)) == ([2e8, 0, 0, 0, 1e9], ["old"])
    assert found[:, 1].tolist() == [0, 0, 0]


def test_a_value_that_new_samples_lack_is_zero_beside_an_offset():
    """It was measured from what the last column is measured from: 1e9 in place of 0."""
    given, fitted = ["c = A", "c = B", "x"], ["c = A", "c = B", "c = C", "x"]
    array, offset = np.array([[1.0, 0, 0.5], [0, 1, 0.25]]), np.array([0.0, 0.0, 1e9])
    found, _, own, _ = conformed("shop", array, np.ones(2, dtype=bool), offset, given, fitted)
    assert (found + own).tolist() == [[1, 0, 0, 1e9 + 0.5], [0, 1, 0, 1e9 + 0.25]]
