"""What remains of a fit beside versions in plain loops: explanations, stability, who is kept, who is far."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from scipy import sparse

from viewfuse.cli import main
from viewfuse.data.scaling import Scaler
from viewfuse.data.views import Views
from viewfuse.engine import replicates as passes
from viewfuse.errors import DataError, SettingError
from viewfuse.fitted import clusters as effects
from viewfuse.fitted import clusters as stability
from viewfuse.fitted import manifest
from viewfuse.fitted import model as fitted_model
from viewfuse.fitted.clusters import Merge, differences, representatives, view_effects
from viewfuse.fitted.explanation import (
    Explanation,
    _donors,
    _weights,
    second_best,
    sheets,
)
from viewfuse.fitted.manifest import _names_one_file, read_file
from viewfuse.fitted.model import Model
from viewfuse.neighbors.index import Samples
from viewfuse.reduction.reduce import Reduction, no_front_end


def units(n=29, seed=0):
    """A table of unlike units and large offsets, with one constant column."""
    table = np.random.default_rng(seed).normal(size=(n, 4)) * [1000, 0.01, 1, 3] + [5e5, 0, -2, 40]
    table[:, 2] = -2.5
    return table.astype(np.float32)


@pytest.mark.parametrize("cells", [4_000_000, 13, 1])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_effects_are_differences_of_means_in_deviations(monkeypatch, cells, is_sparse):
    monkeypatch.setattr(effects, "_CELLS_PER_CHUNK", cells)
    table, labels = units(), np.array([(0, 3, 3, 1, 0)[i % 5] for i in range(29)])
    present = np.arange(29) % 6 != 2
    other = np.ones((29, 1))
    given = sparse.csr_array(table) if is_sparse else table
    views = Views(
        {"o": other, "t": given}, mask=np.stack([other[:, 0] > 0, present], axis=1), columns=[["x"], list("abcd")]
    )
    found = view_effects(views, 1, labels, 5)
    assert (found.view, found.labels.tolist(), found.varying.tolist()) == ("t", [0, 1, 3], [True, True, False, True])
    for i, label in enumerate((0, 1, 3)):
        for c in range(4):
            own = [float(x) for x, k, p in zip(table[:, c], labels, present, strict=True) if p and k == label]
            rest = [float(x) for x, k, p in zip(table[:, c], labels, present, strict=True) if p and k != label]
            every = own + rest
            mean = sum(every) / len(every)
            deviation = math.sqrt(sum((x - mean) ** 2 for x in every) / len(every))
            apart = sum(own) / len(own) - sum(rest) / len(rest)
            assert found.difference[i, c] == pytest.approx(apart / deviation if c != 2 else 0.0, rel=1e-5, abs=1e-9)
            assert found.mean[i, c] == pytest.approx(sum(own) / len(own), rel=1e-9)
            assert found.mean_of_others[i, c] == pytest.approx(sum(rest) / len(rest), rel=1e-9)
    order = [one.feature for one in found.of_cluster(3, None)]
    assert order == [*sorted("abd", key=lambda c: -abs(found.difference[2]["abcd".index(c)])), "c"]
    assert [one.feature for one in found.of_cluster(3, 2)] == order[:2]
    assert [one.feature for one in found.of_cluster(3, 9)] == order[:3]  # those that never change are left out
    assert list(found.of_cluster(2, None)) == []
    both = [view_effects(views, v, labels, 5) for v in (0, 1)]
    assert [(one.label, one.view) for one in differences(both, 5, 1)] == [(0, "t"), (1, "t"), (3, "t")]


def test_the_second_best_cluster_is_the_likeliest_of_the_others():
    chances = np.array([[0.2, 0.5, 0.3], [0.4, 0.4, 0.2], [0.1, 0.0, 0.9]], np.float32)
    labels, sure = second_best(chances)
    assert (labels.tolist(), sure.tolist()) == ([2, 1, 0], pytest.approx([0.3, 0.4, 0.1]))
    labels, sure = second_best(np.ones((2, 1), np.float32))
    assert (labels.tolist(), sure.tolist()) == ([-1, -1], [0, 0])


def explained_by_hand():
    donors = np.empty((2, 2), dtype=object)
    donors[0], donors[1] = [(), ("p9", "p1")], [("p3",), ()]
    table = units(6)
    views = Views({"a": table, "b": table[:, :2]}, columns=[list("wxyz"), list("uv")])
    return Explanation(
        ids=np.array(["s7", "s2"]), view_names=("a", "b"), labels=np.array([2, 0]),
        confidence=np.array([0.75, 0.5], np.float32), second_labels=np.array([1, 2]),
        second_confidence=np.array([0.25, 0.375], np.float32), weights=np.array([[1, 0], [0.25, 0.75]], np.float32),
        donors=donors, sizes=np.array([1, 0, 1]), typical=(("s2",), (), ("s7", "x")),
        effects=tuple(view_effects(views, v, np.array([0, 0, 1, 1, 2, 2]), 3) for v in (0, 1)),
        stability=np.array([0.75, 0.5, 0.25], np.float32),
        merges=(Merge((0,), (2,), 1.5, 2), Merge((0, 2), (1,), 3.0, 1)),
    )  # fmt: skip


def test_tables_of_an_explanation_say_each_thing_of_its_own_sample():
    one = explained_by_hand()
    found = sheets(one)
    header, rows = found["samples.csv"][:2]
    assert header == [
        "id", "label", "confidence", "second_label", "second_confidence",
        "weight_a", "weight_b", "donors_a", "donors_b",
    ]  # fmt: skip
    assert rows == [("s7", 2, 0.75, 1, 0.25, 1, 0, "", "p9 p1"), ("s2", 0, 0.5, 2, 0.375, 0.25, 0.75, "p3", "")]
    assert found["clusters.csv"].rows == [
        (0, 1, "s2", 0.75, "found again"), (1, 0, "", 0.5, "partly"), (2, 1, "s7 x", 0.25, "dissolves"),
    ]  # fmt: skip
    assert found["merges.csv"].rows == [("0", "2", 1.5, 2), ("0 2", "1", 3.0, 1)]
    rows = [len(list(sheets(one, top)["features.csv"].rows)) for top in (1, None)]
    assert rows == [6, 18]
    assert len(one.differences) == len(list(found["features.csv"].rows)) == 3 * (3 + 2)
    found = sheets(one, top=2)
    assert list(found) == ["samples.csv", "clusters.csv", "merges.csv", "features.csv", "effects.csv"]
    assert [len(list(found[name].rows)) for name in ("features.csv", "effects.csv")] == [12, 18]
    assert repr(one) == "Explanation(2 samples, 3 clusters; mean weights: a 0.62, b 0.38)"


def test_the_table_of_an_explanation_has_words_left_and_counts_right(monkeypatch, tmp_path):
    one = replace(explained_by_hand(), sizes=np.array([1, 0, 1234]))
    one = replace(one, stability=np.array([0.75, math.nan, 0.25]))
    model = SimpleNamespace(view_names_=["a", "b"], explain=lambda views: one)
    monkeypatch.setattr("viewfuse.load", lambda *_, **__: model)
    (tmp_path / "a.csv").write_text("id,w\ns1,1\n")
    asked = ["explain", str(tmp_path / "model"), str(tmp_path / "a.csv"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0, done.output
    table, means = units(6), []
    for c, column in ((0, 0), (1, 3), (2, 1)):
        own = np.arange(6) // 2 == c
        means.append(f"{table[own, column].mean():.4g}, others {table[~own, column].mean():.4g}")
    assert done.output.splitlines() == [
        "label  size  found again        typical samples  most distinguishing feature",
        f"0         1  found again, 0.75  s2               a w: {means[0]} (+0.9 deviations)",
        f"1         0  unknown                             a z: {means[1]} (-1.6 deviations)",
        f"2      1234  dissolves, 0.25    s7 x             a x: {means[2]} (+1.1 deviations)",
        "",
        "for fewer clusters, join 0 and 2, then 0+2 and 1",
        "",
        f"written to {tmp_path / 'out'}",
    ]
    lines = CliRunner().invoke(main, [*asked, "--force", "--top", "2"]).output.splitlines()
    assert lines[0].endswith("  most distinguishing features")
    assert [line[:48].split() for line in lines[1:7:2]] == [line[:48].split() for line in done.output.splitlines()[1:4]]
    assert [line[:49] for line in lines[2:7:2]] == [" " * 49] * 3  # the second feature below the first
    assert [line[49:53] for line in lines[1:7]] == ["a w:", "b u:", "a z:", "a w:", "a x:", "b v:"]  # b: w, x


class Moves:
    """A method, and its network, whose views move an embedding by what stands in the first column of each."""

    shows_rounding, neighbor_depth, name = False, 2, "moves"

    def view_influence(self, network, samples, stored):
        moved = torch.stack([view[:, 0] for view in samples.values], dim=1)
        return torch.where(samples.present, moved, -torch.inf)

    def members(self, samples, stored):
        return samples.neighbor_ids

    def decode(self, embedding):
        return torch.split(embedding, [2, 1], dim=1)


def samples_of(values, present, ids):
    return Samples([torch.tensor(view) for view in values], torch.tensor(present), torch.tensor(ids))


def moving_model(samples):
    before = ("a", "b"), (range(1), range(1)), (0.0, 0.0), Moves(), None, None, None
    return Model(*before, samples, Moves(), np.empty((len(samples), 0)))


def test_weights_are_shares_of_what_the_views_move():
    present = [[True, True], [True, False], [True, True]]
    samples = samples_of([[[3.0], [2.0], [0.0]], [[1.0], [0.0], [0.0]]], present, [[[0], [0]]] * 3)
    found = _weights(moving_model(samples), samples)
    assert found.tolist() == [[0.75, 0.25], [1.0, 0.0], [0.5, 0.5]]


def test_weights_and_donors_stay_with_their_samples_in_several_passes(monkeypatch):
    monkeypatch.setitem(passes._ROWS_PER_PASS, "cpu", 4)
    rng, n = np.random.default_rng(0), 11
    values = rng.uniform(1, 9, size=(2, n, 1)).astype(np.float32)
    present = np.stack([np.arange(n) % 3 != 0, np.ones(n, bool)], axis=1)
    ids = rng.integers(-1, 20, size=(n, 2, 3))
    samples = samples_of(values, present, ids)
    names = np.array([f"t{i}" for i in range(20)])
    weights = _weights(moving_model(samples), samples)
    donors = _donors(moving_model(samples), samples, names)
    for i in range(n):
        shares = [float(values[v, i, 0]) if present[i, v] else 0.0 for v in (0, 1)]
        assert weights[i].tolist() == pytest.approx([share / sum(shares) for share in shares])
        assert donors[i, 0] == (() if present[i, 0] else tuple(f"t{j}" for j in ids[i, 0] if j != -1))
        assert donors[i, 1] == ()


@pytest.mark.parametrize(
    ("number", "word"),
    [(0.75, "found again"), (0.749, "partly"), (0.5, "partly"), (0.499, "dissolves"), (math.nan, "unknown")],
)
def test_stability_in_a_word(number, word):
    assert stability.in_a_word(number) == word


@pytest.mark.parametrize("keep", [1, 5, 13, 29, 30])
def test_who_is_kept_is_the_share_of_each_cluster_with_most_views_first(keep):
    labels = np.array([(0, 0, 0, 4, 2)[i % 5] for i in range(30)])
    present = np.random.default_rng(2).random((30, 3)) < 0.6
    chance = np.random.default_rng(0).random(30).tolist()
    rank = {}
    for label in (0, 2, 4):
        members = [i for i in range(30) if labels[i] == label]
        members.sort(key=lambda i: (-present[i].sum(), chance[i]))
        rank |= {i: ((place + 0.5) / len(members), chance[i]) for place, i in enumerate(members)}
    assert representatives(labels, present, keep).tolist() == sorted(sorted(range(30), key=lambda i: rank[i])[:keep])
    assert representatives(labels, present, None).tolist() == list(range(30))
    for wrong in (0, 31, True, 2.0):
        with pytest.raises(SettingError, match="from 1 to 30"):
            representatives(labels, present, wrong)


def training_samples():
    values = [np.array([[0.0, 10], [4, 10], [99, 99]], np.float32), np.array([[-1.0], [99], [1]], np.float32)]
    return samples_of(values, [[True, True], [True, False], [False, True]], [[[0], [0]]] * 3)


def test_far_is_ten_times_the_range_of_the_column_or_of_the_view():
    """Ranges are 4 and 0, so 2 on average: 40 about the first column, 20 about the second, 20 about the other view."""
    model = moving_model(training_samples())
    cases = [
        ([0, 10], [0], [1, 1], False), ([44, 10], [0], [1, 1], False), ([44.1, 10], [0], [1, 1], True),
        ([-40, -10], [-21], [1, 1], False), ([-40.1, 10], [0], [1, 1], True), ([0, 30.1], [0], [1, 1], True),
        ([0, 10], [21.1], [1, 1], True), ([0, 10], [21.1], [1, 0], False), ([1e9, 10], [21], [0, 1], False),
        ([0, -10.1], [0], [1, 1], True), ([math.nan, 10], [0], [1, 1], True),
    ]  # fmt: skip
    first, second, present, far = zip(*cases, strict=True)
    values = [torch.tensor(first), torch.tensor(second)]
    assert model.is_far(values, torch.tensor(present, dtype=torch.bool)).tolist() == list(far)


def test_rebuilt_values_stay_within_those_of_the_samples_that_have_the_view():
    scaler = Scaler("standard", (np.zeros(2), np.zeros(1)), (np.ones(2), np.ones(1)))
    reduction = Reduction((no_front_end(2), no_front_end(1)))
    model = replace(moving_model(training_samples()), scaler=scaler, reduction=reduction)
    found = model.rebuild(torch.tensor([[-5.0, 50, -3], [3, 9, 0], [7, 10, 2]]))
    assert [own.tolist() for own in found] == [[[0, 10], [3, 10], [4, 10]], [[-1], [0], [1]]]
    nobody = replace(training_samples(), present=torch.tensor([[True, False]] * 3))
    assert torch.tensor([[77.0]]).clamp(*moving_model(nobody).bounds[1]).tolist() == [[77.0]]


def test_what_is_not_finite_is_told_with_its_row():
    views = Views([np.ones((3, 1))], ids=["a", "b", "c"])
    fitted_model._check_finite(torch.zeros(3, 2), views)
    with pytest.raises(DataError, match=r"row 1 \(id 'b'\)"):
        fitted_model._check_finite(torch.tensor([[0, 0], [0, math.inf], [math.nan, 0]]), views)


def test_tensors_of_samples_are_scaled_and_their_own():
    table = units(5)
    views = Views([table, table[:, :1]], mask=[[1, 1], [1, 0], [1, 1], [0, 1], [1, 1]])
    scaler = Scaler("standard", (np.full(4, 2.0), np.zeros(1)), (np.full(4, 4.0), np.ones(1)))
    values, present = fitted_model.scaled_tensors(views, scaler, torch.device("cpu"))
    assert present.tolist() == views.mask.tolist()
    np.testing.assert_allclose(values[0].numpy(), np.where(views.mask[:, :1], (table - 2) / 4, 0), rtol=1e-6)
    plain, _ = fitted_model.scaled_tensors(views, Scaler("none", (), ()), torch.device("cpu"))
    plain[1][0] = -7
    assert views.arrays[1][0, 0] == table[0, 0]


@pytest.mark.parametrize(
    ("whole", "factors", "kept"),
    [((True,), (1, 2, 3), ["mixed", "standard", "minmax"]), ((True,), (1, 1, 3), ["mixed", "minmax"]),
     ((False,), (1, 1, 3), ["standard", "minmax"]), ((False,), (1, 2, 1), ["standard", "minmax"]),
     ((True,), (1, 2, 1), ["mixed", "standard"]), ((False,), (1, 1, 1), ["standard"]),
     ((False,), (1, 2, 3), ["mixed", "standard", "minmax"]), ((False,), (1, 2, 2), ["mixed", "standard"])],
)  # fmt: skip
def test_scalings_that_do_the_same_are_tried_once(monkeypatch, whole, factors, kept):
    by_kind = dict(zip(("mixed", "standard", "minmax"), factors, strict=True))
    asked = []

    def fit_scaler(views, kind, given):
        asked.append((views, given))
        return Scaler(kind, (np.zeros(1),), (np.full(1, by_kind[kind]),), whole if kind == "mixed" else (not whole[0],))

    monkeypatch.setattr(fitted_model, "fit_scaler", fit_scaler)
    source = SimpleNamespace(reduced="reduced", reduction=SimpleNamespace(units=("view",)))
    assert [one.kind for one in fitted_model.scalers_of(source, "auto")] == kept
    assert set(asked) == {("reduced", ("view",))}
    assert [one.kind for one in fitted_model.scalers_of(source, "standard")] == ["standard"]


def test_another_digest_for_anything_that_is_another():
    table = units(7)
    whole = Views({"a": table, "b": table[:, :2]}, ids=list("pqrstuv"))
    base = manifest.digest(whole)
    assert base == manifest.digest(Views({"a": table.copy(), "b": table[:, :2]}, ids=list("pqrstuv")))
    changed = table.copy()
    changed[6, 3] += 1
    mask = np.ones((7, 2), bool)
    mask[4, 1] = False
    hidden = Views({"a": table, "b": table[:, :2]}, ids=list("pqrstuv"), mask=mask)
    matrix = sparse.csr_array(np.where(table < 0, 0, table))
    moved, other = (with_part(matrix, part) for part in ("indices", "data"))
    others = [
        Views({"a": changed, "b": table[:, :2]}, ids=list("pqrstuv")),
        Views({"a": table, "b": changed[:, 2:]}, ids=list("pqrstuv")),
        Views({"a": table, "c": table[:, :2]}, ids=list("pqrstuv")),
        Views({"a": table, "b": table[:, :2]}, ids=list("qprstuv")),
        whole[::-1], hidden, hidden.replace(mask=np.ones((7, 2), bool)), whole.replace(mask=mask),
        *(Views({"a": one, "b": table[:, :2]}, ids=list("pqrstuv")) for one in (matrix, moved, other)),
    ]  # fmt: skip
    digests = [manifest.digest(one) for one in others]
    assert len({base, *digests}) == len(others) + 1


def with_part(matrix, part):
    """The matrix with its first row's last value elsewhere, or larger."""
    dense = matrix.toarray()
    dense[0] = dense[0][::-1] if part == "indices" else dense[0] * 2
    return sparse.csr_array(dense)


@pytest.mark.parametrize("at_a_time", [65_536, 3])
def test_a_digest_looks_at_all_rows(monkeypatch, at_a_time):
    monkeypatch.setattr("viewfuse.utils.memory._ROWS_AT_A_TIME", at_a_time)
    table, seen = units(7), set()
    for row in range(7):
        changed = table.copy()
        changed[row, 0] += 1
        seen.add(manifest.digest(Views([changed])))
    assert len(seen) == 7


def test_facts_of_a_fit_name_all_on_which_its_numbers_depend():
    views = Views({"a": units(7)})
    facts = manifest.fit_facts(views, {"seed": 3, "way": {"a": "pca"}}, torch.device("cpu"))
    assert (facts["seed"], facts["way"], facts["samples"], facts["views"]) == (3, "{'a': 'pca'}", 7, ["a"])
    assert facts["threads"] == torch.get_num_threads()
    assert facts["digest of the data"] == manifest.digest(views)
    assert facts["version of torch"] == torch.__version__
    assert manifest.fit_facts(views, {}, torch.device("meta"))["threads"] is None


def test_files_of_a_model_are_read_up_to_their_length(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    assert read_file(tmp_path / "file", 5) == b"12345"
    with pytest.raises(ValueError, match="too long"):
        read_file(tmp_path / "file", 4)
    with pytest.raises(ValueError, match="no plain file"):
        read_file(tmp_path, 9)


FINE = {"bytes": 1, "sha256": "x"}


@pytest.mark.parametrize(
    ("files", "fine"),
    [({"tensors-0a.safetensors": FINE}, True), ({"../tensors-0a.safetensors": FINE}, False), ({}, False),
     ({"tensors-/0a.safetensors": FINE}, False), ({"model.bin": FINE}, False),
     ({"tensors-0a.safetensors": FINE | {"bytes": "1"}}, False), ({"tensors-0a.safetensors": {"bytes": 1}}, False),
     ({f"tensors-{i}.safetensors": FINE for i in range(2)}, False)],
)  # fmt: skip
def test_a_manifest_names_one_file_beside_it(files, fine):
    assert _names_one_file(files) == fine
