"""Pairs of samples that belong together or apart: how they are read, which contradict each other, what they change."""

from __future__ import annotations

from itertools import combinations, pairwise, product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from flat import flat
from test_hints import TINY, groups, partly
from viewfuse import URRL, load
from viewfuse.cli import main
from viewfuse.data.side_information.knowledge import NOTHING, Guidance, Knowledge, sample_weights
from viewfuse.data.side_information.known_labels import UNKNOWN, Hints
from viewfuse.data.side_information.pairs import Pairs, PairTable
from viewfuse.errors import CheckpointDiffers, DataError, SuspiciousDataWarning
from viewfuse.io.labels import read_pairs
from viewfuse.methods.urrl import losses_and_augmentation as losses
from viewfuse.methods.urrl.scaling_search import Trial
from viewfuse.selection.decision_texts import label, restored, words

IDS = np.array([f"s{i}" for i in range(8)])


@pytest.mark.parametrize(
    "given",
    [
        [("s1", "s4"), ("s6", "s2"), ("s3", "s3")],
        np.array([[1, 4], [6, 2], [3, 3]]),
        pd.DataFrame({"a": [" s1", "s6", "s3"], "b": ["s4 ", "s2", "s3"]}),
        PairTable(
            [("id", "other"), ("s1", "s4"), ("s6", "s2"), ("s3", "s3")], ["line 1", "line 2", "line 3", "line 4"]
        ),
        PairTable([("s1", "s4"), ("s6", "s2")], ["line 1", "line 2"]),
    ],
    ids=["list", "rows", "frame", "file", "file without header"],
)
def test_pairs_of_every_form_are_the_same(given):
    pairs = Pairs.of(given, [("s0", "s7")], IDS)
    assert pairs.rows.tolist() == [[1, 4], [6, 2], [0, 7]]
    assert pairs.together.tolist() == [True, True, False]
    assert pairs.by_ids(IDS) == {"must_link": [["s1", "s4"], ["s6", "s2"]], "cannot_link": [["s0", "s7"]]}


def test_numbers_that_are_ids_are_ids():
    ids = np.array([10, 20, 30])
    assert Pairs.of([(10, 30)], None, ids).rows.tolist() == [[0, 2]]
    assert Pairs.of([(0, 2)], None, ids).rows.tolist() == [[0, 2]]
    with pytest.raises(DataError, match=r"must_link\[0\]: '2' is no id, but '10' is"):
        Pairs.of([(10, 2)], None, ids)


def test_ids_that_differ_in_a_blank_only_are_two_samples():
    ids = np.array(["s1", "s1 ", "s3"])
    pairs = Pairs.of([["s1 ", "s3"]], [["s1", "s1 "]], ids)
    assert pairs.rows.tolist() == [[1, 2], [0, 1]]
    assert Hints.of({"s1": "a", "s3": "b"}, ids).codes.tolist() == [0, UNKNOWN, 1]
    assert sample_weights(pd.Series([1, 2, 0], index=ids), ids).tolist() == [1, 2, 0]
    with pytest.raises(DataError, match=r"must_link\[0\]: ' s3' is no id"):
        Pairs.of([["s1", " s3"]], None, ids)


@pytest.mark.parametrize("given", [None, [], np.empty((0, 2)), [("s1", "s1")]])
def test_without_pairs_nothing_is_known(given):
    assert Pairs.of(given, None, IDS) is None
    assert Knowledge.of(IDS, None, given).facts() == NOTHING.facts() == {}


@pytest.mark.parametrize(
    ("must", "cannot", "y", "fault"),
    [
        ([("s1", "x")], None, None, r"must_link\[0\]: 'x' is no id, but 's0' is"),
        ([(1, 8)], None, None, r"must_link\[0\]: '1' is no id"),
        (None, [(1, 2), (-1, 2)], None, r"cannot_link\[0\]: '1' is no id"),
        ([1, 2], None, None, r"must_link is of shape \(2,\)"),
        ([("s1", "s2", "s3")], None, None, r"must_link is of shape \(1, 3\)"),
        (None, [("s4", "s5"), ("s2", "s2")], None, r"cannot_link\[1\]: 's2' cannot be apart from itself"),
        (
            [("s1", "s2"), ("s5", "s6"), ("s3", "s2")], [("s0", "s1"), ("s1", "s3")], None,
            r"cannot_link\[1\]: 's1' and 's3' must be apart, but also together "
            r"\('s1' - 's2' - 's3': must_link\[0\]; must_link\[2\]\)",
        ),
        (
            [("s1", "s2"), ("s2", "s3")], None, {"s1": "a", "s3": "b"},
            r"'s1' and 's3' have the hints 'a' and 'b', but must be together \('s1' - 's2' - 's3': must_link\[0\]; ",
        ),
        (
            [("s1", "s2")], [("s2", "s3")], {"s1": "a", "s3": "a"},
            r"cannot_link\[0\]: 's2' and 's3' must be apart, but both have the hint 'a', themselves or through must-",
        ),
    ],
)  # fmt: skip
def test_contradictions_are_named_before_training(must, cannot, y, fault):
    with pytest.raises(DataError, match=fault):
        Knowledge.of(IDS, y, must, cannot)


def possible(n, musts, cannots, codes, n_clusters):
    """Whether any partition keeps all pairs and hints, by trying all."""
    for labels in product(range(n_clusters), repeat=n):
        together = all(labels[i] == labels[j] for i, j in musts)
        apart = all(labels[i] != labels[j] for i, j in cannots)
        if together and apart and all(code in (UNKNOWN, own) for code, own in zip(codes, labels, strict=True)):
            return True
    return False


def test_what_is_refused_cannot_be_kept_by_any_partition_and_the_rest_can():
    """Of five samples in five clusters, where nothing but a contradiction stands in the way."""
    rng, refused = np.random.default_rng(0), 0
    every = list(combinations(range(5), 2))
    for _ in range(40):
        chosen = rng.permutation(len(every))[: rng.integers(2, 8)]
        musts, cannots = [], []
        for place in chosen:
            (musts if rng.random() < 0.6 else cannots).append(every[place])
        codes = np.where(rng.random(5) < 0.3, rng.integers(0, 2, 5), UNKNOWN)
        named = [None if code == UNKNOWN else "ab"[code] for code in codes]
        try:
            known = Knowledge.of(np.arange(5), named, musts, cannots)
        except DataError:
            assert not possible(5, musts, cannots, codes, 5)
            refused += 1
            continue
        assert possible(5, musts, cannots, codes, 5)
        fewest = next(k for k in range(1, 6) if possible(5, musts, cannots, [UNKNOWN] * 5, k))
        assert known.pairs is None or known.pairs.least_clusters(5) <= fewest
    assert 5 < refused < 35


def test_samples_that_cannot_be_together_need_clusters_of_their_own():
    apart = [(0, 1), (0, 2), (1, 3), (4, 5)]
    pairs = Pairs.of([(2, 6), (3, 6)], apart, np.arange(8))  # 0, 1 and the group of 2, 3 and 6
    assert pairs.least_clusters(8) == 3
    known = Knowledge(None, pairs)
    assert known.range((1, 9), 8) == (3, 9)
    with pytest.warns(SuspiciousDataWarning, match="3 samples cannot be together, so there are 3 clusters, not 2"):
        assert known.number(2, 8, asked=True) == 3


def test_hints_spread_over_samples_that_belong_together():
    known = Knowledge.of(IDS, {"s1": "a", "s7": "b"}, [("s1", "s2"), ("s2", "s3"), ("s4", "s5")], [("s7", "s3")])
    assert known.hints.codes.tolist() == [UNKNOWN, 0, 0, 0, UNKNOWN, UNKNOWN, UNKNOWN, 1]


def test_pairs_among_some_samples_have_the_numbers_of_these():
    pairs = Pairs.of([(0, 5), (2, 7)], [(7, 1)], np.arange(8))
    some = pairs.take(np.array([7, 2, 3, 1]), 8)
    assert some.rows.tolist() == [[1, 0], [0, 3]]
    assert some.together.tolist() == [True, False]
    assert pairs.take(np.array([0, 1]), 8) is None
    assert pairs.broken(np.array([0, 1, 2, 0, 0, 0, 0, 1])).by_ids(np.arange(8)) == {
        "must_link": [["2", "7"]], "cannot_link": [["7", "1"]],
    }  # fmt: skip


def test_the_loss_is_the_cross_entropy_of_sharing_a_cluster():
    draw = torch.Generator().manual_seed(0)
    embedding, centers = torch.randn(3, 2, 5, 4, generator=draw), torch.randn(3, 6, 4, generator=draw)
    together = torch.rand(3, 5, generator=draw) < 0.5
    expected = []
    for r in range(3):
        costs = []
        for i in range(5):
            soft = []
            for side in range(2):
                kernel = [1 / (1 + float((embedding[r, side, i] - centers[r, c]).square().sum())) for c in range(6)]
                soft.append(np.array(kernel) / sum(kernel))
            shared = float((soft[0] * soft[1]).sum())
            costs.append(-np.log(shared if together[r, i] else 1 - shared))
        expected.append(np.mean(costs))
    assert losses.pairs(embedding, centers, together).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_pair_in_one_place_that_must_be_apart_costs_much_but_not_everything():
    embedding = torch.zeros(2, 1, 3, requires_grad=True)
    centers = torch.tensor([[0.0, 0.0, 0.0], [1e9, 0.0, 0.0]])
    cost = losses.pairs(embedding, centers, torch.tensor([False]))
    cost.backward()
    assert 10 < float(cost.detach()) < 30
    assert torch.isfinite(embedding.grad).all()


def fitted(views, **known):
    checkpoint = known.pop("checkpoint", None)
    return URRL(3, **flat(**TINY, checkpoint=checkpoint), random_state=0).fit(views, **known)


@pytest.mark.slow
def test_without_pairs_a_fit_stays_as_it_is_to_the_bit():
    _, views = groups()
    plain, same = fitted(views), fitted(views, must_link=[], cannot_link=[(1, 2)][:0])
    assert plain.soft_labels_.tobytes() == same.soft_labels_.tobytes()
    assert "pairs" not in plain.decisions_
    assert "pairs" not in plain.history_


def test_a_fit_knows_pairs_and_says_which_it_keeps(tmp_path):
    truth, views = groups()
    same, other = np.flatnonzero(truth == 0)[:4], np.flatnonzero(truth == 1)[:4]
    links = {"must_link": list(pairwise(same)), "cannot_link": np.stack([same, other], axis=1)}
    model = fitted(views, **links, checkpoint=tmp_path / "kept")
    assert model.history_["pairs"][:3] == [0.0] * 3
    assert min(model.history_["pairs"][3:]) > 0
    found, labels = model.decisions_["pairs"], model.labels_
    kept = [labels[i] == labels[j] for i, j in links["must_link"]]
    kept += [labels[i] != labels[j] for i, j in links["cannot_link"].tolist()]
    assert (found["chosen"], found["kept"]) == (7, sum(kept))
    assert sum(map(len, found["broken"].values())) == 7 - sum(kept)
    decision = restored(model.decisions_)["pairs"]
    assert found["why"] == f"{label(decision)}: {words(decision)}"
    resumed = fitted(views, **links, checkpoint=tmp_path / "kept")
    assert resumed.soft_labels_.tobytes() == model.soft_labels_.tobytes()
    with pytest.raises(CheckpointDiffers, match="pairs"):
        fitted(views, must_link=links["must_link"], checkpoint=tmp_path / "kept")
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    known = Knowledge.from_records(again.decisions_, again.ids_).pairs
    assert known.by_ids(again.ids_) == found["evidence"]
    again.set_params(checkpoint=None).validate(2)
    assert again.trust_.refits == 2


def test_pairs_and_hints_together_in_one_fit():
    truth, views = groups()
    y = partly(truth, 1)
    row = int(np.flatnonzero((truth == 2) & (y == UNKNOWN))[0])
    model = fitted(views, y=y, must_link=[(row, int(np.flatnonzero(y == 2)[0]))])
    assert {"hints", "pairs"} <= model.history_.keys()
    assert model.decisions_["hints"]["chosen"] == 4
    assert isinstance(Knowledge.from_records(model.decisions_, model.ids_).hints, Hints)


def test_files_of_pairs_are_read_and_their_lines_are_named(tmp_path):
    file = tmp_path / "pairs.csv"
    file.write_text("\ufeffone,other\r\n\r\ns1,s2\r\n'=s3, s4 \r\n", encoding="utf-8")
    table = read_pairs(file)
    assert table.rows == [("one", "other"), ("s1", "s2"), ("=s3", "s4")]
    assert table.places == [f"{file}, line {number}" for number in (1, 3, 4)]
    with pytest.raises(DataError, match=r"pairs.csv, line 4: '=s3' is no id, but 's0' is"):
        Pairs.of(table, None, IDS)
    for text in ("s1,s2\ns3\n", "s1,s2\ns3,s4,s5\n", "s1,s2\ns3,\n"):
        file.write_text(text)
        with pytest.raises(DataError, match=r"pairs.csv, line 2 does not hold two ids"):
            read_pairs(file)
    with pytest.raises(DataError, match=r"none.csv is not there; check the path"):
        read_pairs(tmp_path / "none.csv")


@pytest.mark.usefixtures("quick_map")
def test_the_command_line_reads_pairs_and_weights(tmp_path):
    truth, views = groups()
    ids = [f"s{i}" for i in range(len(truth))]
    for name, table in views.items():
        pd.DataFrame(table, index=pd.Index(ids, name="id")).dropna().to_csv(tmp_path / f"{name}.csv")
    (tmp_path / "must.csv").write_text("a,b\ns1,s2\n")
    (tmp_path / "cannot.csv").write_text("s2,s1\n")
    (tmp_path / "weights.csv").write_text("id,weight\n" + "".join(f"{one},{1 + i % 2}\n" for i, one in enumerate(ids)))
    options = ["--clusters", "3", "--hidden-dim", "8", "--embedding-dim", "8", "--pretrain-epochs", "2"]
    options += ["--joint-epochs", "1", "--trusted", "--out", str(tmp_path / "run")]
    arguments = ["fit", *(str(tmp_path / f"{name}.csv") for name in views), *options]
    arguments += ["--must-link", str(tmp_path / "must.csv")]
    doubled = ["--view-weights", "sound=2"]
    done = CliRunner().invoke(main, [*arguments, "--cannot-link", str(tmp_path / "cannot.csv")])
    assert done.exit_code != 0
    assert "cannot.csv, line 1: 's2' and 's1' must be apart, but also together" in done.output
    assert "must.csv, line 2" in done.output
    done = CliRunner().invoke(main, [*arguments, "--sample-weight", str(tmp_path / "weights.csv"), *doubled])
    assert done.exit_code == 0, done.output
    said = "60 samples are learned from with weights from 0.667 to 1.333 (views: sound 1.333, image 0.667)"
    assert said in done.output
    found = load(tmp_path / "run" / "model").decisions_
    assert found["pairs"]["evidence"] == {"must_link": [["s1", "s2"]], "cannot_link": []}
    assert found["weights"]["evidence"]["samples"]["s1"] == pytest.approx(4 / 3)


@pytest.mark.slow
def test_pairs_and_weights_still_count_in_an_update():
    truth, views = groups()
    tables = {name: pd.DataFrame(table, [f"s{i}" for i in range(len(truth))]) for name, table in views.items()}
    old, new = ({name: table.iloc[rows] for name, table in tables.items()} for rows in (slice(50), slice(50, None)))
    same = np.flatnonzero(truth[:50] == 0)[:2]
    links, weights = [[f"s{i}" for i in same]], {f"s{i}": 1 + i % 2 for i in range(50)}
    model, plain = fitted(old, must_link=links, sample_weight=weights), fitted(old)
    model.update(new)
    plain.update(new)
    epochs = [place for place, stage in enumerate(model.history_["stage"]) if stage == "update"]
    assert epochs
    assert all(model.history_["pairs"][place] > 0 for place in epochs)
    assert "pairs" not in plain.history_
    assert model.decisions_["pairs"]["evidence"]["must_link"] == links
    known = Knowledge.from_records(model.decisions_, model.ids_)
    assert known.weights == pytest.approx(np.array([*weights.values(), *[1.5] * 10]) / 1.5)


def test_other_partitions_keep_as_much_of_what_is_known_or_less_by_chance():
    """Four classes and five pairs; a hint that is not followed does not count."""
    classes = torch.tensor([0, 1, 2, 0, 1, -1, -1, -1])
    pairs = torch.tensor([[5, 6], [6, 7], [0, 5], [1, 6], [2, 7]])
    together, doubted = torch.tensor([True, True, False, False, False]), torch.arange(8) == 4
    known = Guidance(classes, doubted, pairs, together)
    labels = np.array([0, 1, 2, 0, 2, 3, 3, 3])
    assert known.kept(labels).tolist() == [True] * 9
    other = np.array([0, 1, 3, 1, 1, 3, 3, 2])
    assert known.kept(other).tolist() == [True, True, False, False, True, False, True, True, True]
    assert Guidance().kept(labels).tolist() == []
    trial = SimpleNamespace(run=SimpleNamespace(known=known))
    kept = {name: np.array(own) for name, own in {"all": labels, "less": other}.items()}
    assert Trial._keeps_known(trial, kept["all"], kept["less"])
    assert not Trial._keeps_known(trial, kept["less"], kept["all"])  # three fewer, and the root of three is less
    one_less = np.array([1, 1, 2, 0, 2, 3, 3, 3])
    assert Trial._keeps_known(trial, one_less, labels)
