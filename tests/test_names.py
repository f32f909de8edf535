"""Ids and names of columns of every kind that pandas gives are saved and come back equal, or are refused in time."""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from dateutil.tz import tzoffset

from viewfuse import URRL, Config, DataError, Views, load
from viewfuse.fitted.manifest import check_storable, decode, encode

KINDS = {
    "text": ["a", "b\0", "", "=1+1"],
    "numbers": [1, 2**70, -3, 0.5, True],
    "several levels": [("a", 1), ("a", None), ("b", float("nan")), (("x", b"y"), pd.NaT)],
    "bytes": [b"a", b"\xff\0"],
    "decimals": [Decimal("1.10"), Decimal("1E+30")],
    "dates": [datetime.date(2020, 1, 2), datetime.date(1, 1, 1)],
    "datetimes": [datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)],
    "times": [datetime.time(1, 2, 3), datetime.timedelta(3, 4, 5)],
    "timestamps": [*pd.date_range("2020-10-24 23:30", periods=4, freq="30min"), pd.Timestamp(1, unit="ns")],
    "zones": [
        *pd.date_range("2020-10-24 22:30", periods=6, freq="30min", tz="Europe/Berlin"),
        pd.Timestamp("2020-01-01 00:00:00.000000001+05:30"),
        pd.Timestamp("2020-01-01", tz="UTC").as_unit("s"),
    ],
    "timedeltas": list(pd.timedelta_range("1h", periods=3)),
    "intervals": [*pd.interval_range(0, 3), *pd.interval_range(pd.Timestamp("2020", tz="UTC"), periods=2)],
    "periods": [*pd.period_range("2020-01", periods=3, freq="M"), pd.Period("2020-01-01", freq="min")],
    "others": [uuid.UUID(int=5), frozenset({1, "a"}), np.datetime64("2020-01-01T00:00:00.000000001")],
}


@pytest.mark.parametrize("kind", KINDS)
def test_names_come_back_equal(kind):
    names = KINDS[kind]
    check_storable("ids", names)
    back = decode(json.loads(json.dumps(encode(names))))
    for one, other in zip(names, back, strict=True):
        assert type(one) is type(other)
        assert repr(one) == repr(other)
        if "nan" not in repr(one).lower() and "NaT" not in repr(one):
            assert one == other
            assert hash(one) == hash(other)


class Own:
    pass


@pytest.mark.parametrize("name", [Own(), object, 1j, (1, Own()), pd.Timestamp("2020", tz=tzoffset("x", 60))])
def test_other_names_are_refused_before_training(name, monkeypatch):
    monkeypatch.setattr("viewfuse.methods.urrl.estimator.fit_models", lambda *_, **__: pytest.fail("it was trained"))
    values = np.random.default_rng(0).normal(size=(4, 2))
    with pytest.raises(DataError, match=r"ids such as .* cannot be saved with a model; use text instead"):
        URRL(2).fit(Views([values], ids=["a", "b", "c", name]))
    with pytest.raises(DataError, match="names of columns of view 'a' such as"):
        URRL(2).fit(Views({"a": values}, columns=[["x", name]]))


@pytest.mark.parametrize("kind", [complex, np.longdouble])
def test_numbers_that_python_does_not_know_how_to_save_are_refused_before_training(kind, monkeypatch):
    monkeypatch.setattr("viewfuse.methods.urrl.estimator.fit_models", lambda *_, **__: pytest.fail("it was trained"))
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(4, 2)), index=np.arange(4).astype(kind))
    ids = frame.index.to_numpy()
    with pytest.raises(DataError, match=r"ids such as .* cannot be saved with a model; use text instead"):
        URRL(2).fit(Views([frame.to_numpy()], ids=ids))
    if kind is complex:
        with pytest.raises(DataError, match=r"ids such as .* cannot be saved with a model; use text instead"):
            URRL(2).fit({"a": frame})


def test_a_model_knows_its_samples_again(tmp_path):
    values = np.random.default_rng(0).normal(size=(8, 2))
    index = pd.date_range("2020-10-25", periods=8, freq="h", tz="Europe/Berlin")
    columns = pd.interval_range(0, 2)
    frame = pd.DataFrame(values, index=index, columns=columns)
    quick = {"config": Config(pretrain_epochs=1, joint_epochs=1, hidden_dim=8, embedding_dim=4), "scaling": "standard"}
    model = URRL(2, **quick, device="cpu").fit({"a": frame})
    model.save(tmp_path / "model")
    back = load(tmp_path / "model")
    assert back.ids_.tolist() == model.ids_.tolist() == index.tolist()
    assert np.array_equal(back.predict({"a": frame[columns[::-1]]}), model.labels_)


def test_ids_that_are_times_stay_times():
    days = np.array(["2020-01-01", "2020-01-02"], dtype="M8[ns]")
    assert Views([np.ones((2, 1))], ids=days).ids.dtype == days.dtype
    assert Views([np.ones((2, 1))], ids=["a", "a\0"]).ids.tolist() == ["a", "a\0"]
