"""How many clusters: the rule on tested trees, its words, and data with and without clusters."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from run_folders import SPLITS, a_split
from test_splits import a_look
from viewfuse.errors import SettingError
from viewfuse.neighbors.index import index_training_set
from viewfuse.selection import split_tree
from viewfuse.selection.decision_texts import words
from viewfuse.selection.linkage import cluster_tree
from viewfuse.selection.split_evidence import Split, splits_of
from viewfuse.selection.split_tree import possible_range, splits_tested, without_view
from viewfuse.utils.settings import checked_range

ALL = (1, 200)


def number_decision(splits, n_samples, within):
    return split_tree.number_decision([Split(**one) for one in splits], n_samples, within)


def decided(look, seed=0):
    tree = cluster_tree(look.embedding, look.neighbors, seed)
    found = splits_tested(tree, look, ["a", "b"][: len(look.values)], torch.Generator().manual_seed(seed))
    return split_tree.number_decision(found, len(look), ALL)


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "chosen"), [((90, 40, 12, 25), 4), ((150,), 1), ((15,) * 6, 6)])
def test_as_many_clusters_are_found_as_there_are(sizes, chosen):
    found = decided(a_look(sizes)[0])
    assert (found.chosen, found.kind) == (chosen, "clusters" if chosen > 1 else "one")
    assert sum(one["stands"] for one in found.splits) == chosen - 1


def test_the_order_of_the_samples_does_not_matter():
    look, _ = a_look((70, 30, 20))
    order = np.random.default_rng(0).permutation(len(look))
    assert decided(look.take(order)).chosen == decided(look).chosen == 3


@pytest.mark.slow
def test_views_that_are_missing_do_not_shrink_the_number():
    look, _ = a_look((30,) * 4)
    present = look.present & (torch.rand(look.present.shape, generator=torch.Generator().manual_seed(1)) < 0.6)
    present[~present.any(dim=1)] = look.present[~present.any(dim=1)]
    assert decided(look).chosen == 4
    fewer = type(look)(look.embedding, look.hidden, look.values, present, look.table)
    assert decided(fewer).chosen == 4


@pytest.mark.slow
def test_a_curve_is_a_continuum():
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(0, 9, 200))
    views = [np.stack([np.cos(t), np.sin(t), t / 3], axis=1) @ rng.normal(size=(3, 5)) for _ in range(2)]
    views = [torch.from_numpy(view + 0.1 * rng.normal(size=view.shape)).float() for view in views]
    both = torch.cat(views, dim=1)
    hidden = torch.stack([torch.cat([both[:, :5] * (v != 0), both[:, 5:] * (v != 1)], dim=1) for v in range(2)])
    found = decided(split_tree.Look(both, hidden, views, torch.ones(200, 2, dtype=torch.bool), both))
    assert (found.chosen, found.kind) == (1, "continuum")


@pytest.mark.parametrize(("apart", "answer"), [(5, (2, "clusters")), (0, (1, "continuum"))])
def test_in_few_dimensions_clusters_have_a_valley_between_them(apart, answer):
    rng, side = np.random.default_rng(0), np.arange(300) % 2
    spread = rng.normal(size=(300, 2)) if apart else rng.random((300, 2))
    view = torch.from_numpy(spread + apart * side[:, None] * [1, 0]).float()
    # As a network does it: the embedding is a little crisper than the view.
    embedding = view + 0.3 * torch.sign(view - view.median(dim=0).values)
    look = split_tree.Look(embedding, embedding[None], [view], torch.ones(300, 1, dtype=torch.bool), view)
    found = decided(look)
    assert (found.chosen, found.kind) == answer
    assert found.splits[0]["null"] > 0.76
    assert found.splits[0]["valley"] is not None


def agreement_of(strength):
    """Of a made-up split."""
    return 1 - 0.6 * float(np.exp(-strength))


def literal_standing(tree, n):
    """The names of the splits that stand; `tree` has their strength, p-value, view alone, and sizes of both sides."""

    def passes(name, strength, all_strengths):
        _, p, _, sides = tree[name]
        bar = max(0.45 * 0.4, 0.45 * np.mean(sorted(all_strengths, reverse=True)[:4]))
        return strength >= bar and p < 0.05 * (sum(sides) - 1) / (n - 1)

    tested, queue = [], [""]
    while queue:  # the largest is tested next
        queue.sort(key=lambda name: sum(tree[name][3]))
        tested.append(queue.pop())
        if passes(tested[-1], tree[tested[-1]][0], [tree[one][0] for one in tested]) and len(tested[-1]) < 3:
            queue += [tested[-1] + "0", tested[-1] + "1"]
    strengths = [tree[one][0] for one in tested]
    mean = n / (1 + sum(passes(name, tree[name][0], strengths) for name in tested))
    sized = {}
    for name in tested:
        share = min(1.0, min(tree[name][3]) / mean)
        sized[name] = tree[name][0] * (1.0 if agreement_of(tree[name][0]) >= 0.96 else share ** (1 / 3))
    stands = {name for name in tested if passes(name, sized[name], sized.values())}
    for name in sorted(tested, key=len, reverse=True):
        if all(any(one.startswith(name + side) for one in stands) for side in "01"):
            stands.add(name)
    return stands


def literal_names(stands, tested):
    """What is kept of a tree: who stands, and the first that fall below."""
    return {
        name for name in tested
        if name in stands or (not any(one.startswith(name) for one in stands) and (name == "" or name[:-1] in stands))
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(6))
def test_splits_stand_as_in_a_literal_walk_over_the_tree(monkeypatch, seed):
    """On a full tree of 16 groups of unlike sizes; strengths, p-values, and what one view shows alone are made up."""
    rng = np.random.default_rng(seed)
    names = ["", *(f"{i:0{d}b}" for d in (1, 2, 3) for i in range(2**d))]
    chances = {name: float(rng.choice([0.0, 0.9], p=[0.9, 0.1])) for name in names}
    made = {name: (rng.uniform(0.2, 3.4), chances[name], bool(rng.integers(2))) for name in names}
    made[""] = (1.0, 0.0, True)
    counts = rng.permutation([8, 8, 8, 9, 10, 10, 12, 15, 20, 20, 25, 30, 40, 60, 90, 120])
    groups, n = np.repeat(np.arange(16), counts), int(counts.sum())
    merges, at = [], list(range(16))
    while len(at) > 1:
        merges += [[at[i], at[i + 1]] for i in range(0, len(at), 2)]
        at = list(range(16 + len(merges) - len(at) // 2, 16 + len(merges)))
    below = {f"{i:04b}": {i} for i in range(16)}
    for name in reversed(names):
        below[name] = below[name + "0"] | below[name + "1"]
    sizes = {name: [int(counts[list(below[name + side])].sum()) for side in "01"] for name in names}
    tree = {name: (*made[name], sizes[name]) for name in names}
    known = {(min(below[name]), sum(sizes[name])): name for name in names}
    look, _ = a_look((n,))

    def said(own, sides, names, draws, generator):
        assert draws == 4
        strength, p, alone = made[known[int(groups[int(own.table[:, 0].min())]), len(sides)]]
        sizes = [int((~sides).sum()), int(sides.sum())]
        facts = {"p_value": p, "agreement": agreement_of(strength), "alone": alone and names[1], "stands": False}
        return Split(**a_split(-1, 0, sizes, strength, **facts))

    look.table[:, 0] = torch.arange(n)
    monkeypatch.setattr(split_tree, "evidence", said)
    own = split_tree.Tree(groups, np.array(merges))
    found = splits_tested(own, look, ["a", "b"], torch.Generator())
    strengths = {made[name][0]: name for name in names}
    wanted = literal_standing(tree, n)
    assert {strengths[one.strength] for one in found if one.stands} == wanted
    assert {strengths[one.strength] for one in found} <= literal_names(wanted, names)
    for place, one in enumerate(found):
        parent = found[one.parent] if one.parent >= 0 else None
        assert one.parent < place
        assert parent is None or parent.stands
        above = [name for name in wanted if strengths[one.strength].startswith(name)]
        nearest = max((name for name in above if name != strengths[one.strength]), key=len, default=None)
        assert (None if parent is None else strengths[parent.strength]) == nearest


def test_the_level_is_shared_in_proportion_to_the_samples():
    found = decided(a_look((60, 30, 20))[0]).splits
    assert [one["level"] for one in found[:2]] == [
        pytest.approx(0.05), pytest.approx(0.05 * (sum(found[1]["sizes"]) - 1) / 109)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("within", "chosen", "end", "said"),
    [
        (ALL, 3, "", "3, as 2 splits of the tree stand: clearer than in a Gaussian of the same covariance (p = 0.001)"),
        ((1, 2), 2, "largest", "; this is the end of the range, and the data say more"),
        ((5, 9), 5, "smallest", "; this is the beginning of the range, and the data say fewer"),
    ],
)
def test_an_end_of_the_range_is_told(within, chosen, end, said):
    found = number_decision(SPLITS, 150, within)
    assert (found.chosen, found.end) == (chosen, end)
    assert said in words(found)


def test_the_evidence_is_the_weakest_split_and_the_next():
    assert number_decision(SPLITS, 150, ALL).evidence == {"weakest": 1.25, "next": 0.25}
    assert number_decision(SPLITS[:1], 150, ALL).evidence == {"weakest": 2.5}


def test_levels_are_where_splits_get_much_weaker():
    nested = [a_split(-1, 0, [80, 40], 3.0), a_split(0, 0, [40, 40], 2.9), a_split(1, 0, [20, 20], 1.0),
              a_split(1, 1, [20, 20], 4.0), a_split(0, 1, [20, 20], 0.9)]  # fmt: skip
    found = number_decision(nested, 120, ALL)
    assert (found.chosen, found.levels) == (6, [4])
    assert "; 4 clusters hold as well, as a coarser level" in words(found)


@pytest.mark.parametrize(("next_one", "levels"), [(1.2, [2]), (1.4, [])])
def test_a_level_holds_where_the_next_split_is_weaker_by_more_than_a_half(next_one, levels):
    two = [a_split(-1, 0, [60, 60], 2.0), a_split(0, 0, [30, 30], next_one)]
    assert number_decision(two, 120, ALL).levels == levels


def chain(length, gap, **more):
    """Splits as of data with few dimensions."""
    return [a_split(place - 1, 0, [80 - 8 * place, 8], 2.0, null=0.8, gap=gap, **more) for place in range(length)]


FALLEN = [a_split(0, side, [40, 8], 2.0, null=0.8, valley=0.3, stands=False) for side in (0, 1)]
"""Clear splits without a valley."""


@pytest.mark.parametrize(
    ("splits", "n", "said"),
    [
        ([], 15, "1, no clusters were found, as there are too few samples to look for more"),
        (
            [a_split(-1, 0, [80, 40], 0.1, stands=False)],
            120,
            "1, no clusters were found, as samples fall apart no more clearly than",
        ),
        (chain(3, 0.25), 120, "1, no clusters were found: a continuum, in which samples at the borders"),
        (chain(3, 0.26), 120, "^4, as 3 splits of the tree stand"),
        (chain(2, 0.0), 120, "^3, as 2 splits of the tree stand"),
        (chain(3, 0.0, valley=0.01), 120, "1, no clusters were found: a continuum, in which samples at the borders"),
        ([*chain(1, 0.26), *FALLEN], 120, "^2, as 1 split of the tree stands"),
        ([*chain(1, 0.25), *FALLEN], 120, "1, no clusters were found: a continuum, in which samples at the borders"),
        ([*chain(1, 0.25), *FALLEN[1:]], 120, "^2, as 1 split of the tree stands"),
        ([*chain(1, 0.2, valley=0.01), *FALLEN], 120, "^2, as 1 split of the tree stands"),
        (
            [*chain(1, 0.19, valley=0.01), *FALLEN],
            120,
            "1, no clusters were found: a continuum, in which samples at the borders",
        ),
        (
            [a_split(-1, 0, [80, 40], 2.0, stands=False, valley=0.01)],
            120,
            "1, no clusters were found, as samples fall apart no more clearly",
        ),
        (
            [a_split(-1, 0, [80, 40], 2.0, stands=False, valley=0.3)],
            120,
            "1, no clusters were found: a continuum, in which samples at the",
        ),
        (
            [a_split(-1, 0, [80, 40], 0.1, stands=False, valley=0.3)],
            120,
            "1, no clusters were found, as samples fall apart no more clearly",
        ),
        ([a_split(-1, 0, [80, 40], 2.0, held_out={"a": 0.0, "b": 0.05})], 120, "; 1 of the splits .* one view only$"),
        ([a_split(-1, 0, [80, 40], 2.0, held_out={})], 120, r"covariance \(p = 0.001\)$"),
        ([a_split(-1, 0, [80, 40], 2.0)], 120, "left out agree$"),
    ],
)
def test_the_number_of_clusters_in_words(splits, n, said):
    assert re.search(said, words(number_decision(splits, n, ALL)))


def test_the_range_ends_where_there_are_eight_samples_a_cluster():
    assert possible_range((1, 200), 1000) == (1, 125)
    assert possible_range((2, 30), 1000) == (2, 30)
    assert possible_range((6, 30), 20) == (6, 6)
    with pytest.raises(SettingError, match="begins at 6, above the number of samples, 4"):
        possible_range((6, 30), 4)


@pytest.mark.parametrize("wrong", [(3, 2), (0, 5), (1, 1), "auto", 7, (2,), (2, 3.5), (True, 4), None])
def test_a_wrong_range_is_refused(wrong):
    with pytest.raises(SettingError, match="cluster_range must"):
        checked_range(wrong)


def test_a_view_is_hidden_where_there_is_another():
    present = torch.tensor([[True, True], [True, False], [False, True]])
    values = [torch.arange(3.0)[:, None] + 1, torch.arange(3.0)[:, None] + 7]
    hidden = without_view(index_training_set(values, present, 2), 0)
    assert hidden.present.tolist() == [[False, True], [True, False], [False, True]]
    assert hidden.values[0].flatten().tolist() == [0.0, 2.0, 0.0]
    assert (hidden.neighbor_ids[~hidden.present] == -1).all()


def test_sides_without_a_border_are_no_continuum():
    crisp, curved = (
        [a_split(-1, 0, [60, 60], 2.0, agreement=own, null=0.8, gap=0.0), a_split(0, 0, [30, 30], 2.0, agreement=own,
         null=0.8, gap=0.0), a_split(0, 1, [30, 30], 2.0, agreement=own, null=0.8, gap=0.0)]
        for own in (0.999, 0.99)
    )  # fmt: skip
    assert number_decision(crisp, 120, (1, 15)).kind == "clusters"
    assert number_decision(curved, 120, (1, 15)).kind == "continuum"


def test_a_wide_gap_counts_as_one_as_sides_without_a_border_do():
    splits = [
        a_split(place - 1, 0, [80 - 8 * place, 8], 2.0, null=0.8, gap=gap) for place, gap in enumerate((9, -1, 0))
    ]
    assert number_decision(splits, 120, ALL).kind == "continuum"  # 0 on average, not 2.7


@pytest.mark.parametrize(("valley", "level", "stands"), [(0.19, 0.05, True), (0.2, 0.05, False), (0.03, 0.005, False)])
def test_the_level_of_a_valley_is_shared_as_that_of_the_gaussians_is(valley, level, stands):
    one = a_split(-1, 0, [80, 40], 2.0, null=0.8, p_value=1e-9, level=level, valley=valley)
    assert split_tree.tested(Split(**one), 2.0) is stands


def literal_islands(points, values, present, labels, seed):
    """Cluster by cluster, with neighbours counted one by one."""
    found, mean = [], len(labels) / len(set(labels.tolist()))
    for label in sorted(set(labels.tolist())):
        rows = np.flatnonzero(labels == label)
        if len(rows) < 16:
            continue
        views = [view[rows] for view in values]
        whole = torch.from_numpy(np.concatenate([points[rows], *views], axis=1))
        some = split_tree.Look(
            torch.from_numpy(points[rows]), whole[None][:0], [torch.from_numpy(view) for view in views],
            torch.from_numpy(present[rows]), whole[:, :0],
        )  # fmt: skip
        first = splits_of(cluster_tree(some.embedding, some.neighbors, seed))
        if not first:
            continue
        sides = np.isin(np.arange(len(rows)), first[0].right)
        far = np.square(points[rows][:, None].astype(float) - points[rows]).sum(axis=2)
        np.fill_diagonal(far, np.inf)
        embedded, seen = np.zeros((2, len(rows), len(rows)))
        for i, ids in enumerate(some.neighbors.tolist()):
            for j in far[i].argsort()[:9]:
                embedded[i, j] += 1
                embedded[j, i] += 1
            for j in (j for own in ids for j in own if j >= 0):
                shared = (present[rows[i]] & present[rows[j]]).sum()
                seen[i, j] += 1 / shared
                seen[j, i] += 1 / shared
        weights = embedded / embedded.sum() + seen / seen.sum()
        pairs = ((sides, ~sides), (sides, sides), (~sides, ~sides))
        across, one, other = (weights[np.ix_(a, b)].sum() for a, b in pairs)
        chance = (one + across) * (other + across) / (one + other + 2 * across)
        strength = -np.log(max(across / chance, 0.02))
        if strength * min(1.0, len(first[0].right) / mean) ** 0.5 >= 1.7:
            found.append(label)
    return found


@pytest.mark.parametrize(("far", "islands"), [(0.0, []), (12.0, [1])])
def test_a_cluster_that_is_two_islands_is_found(far, islands):
    """Cluster 1 holds two groups, apart or not; cluster 3 has a small corner that is apart, which does not count."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2, 3], [40, 80, 40, 44])
    points = rng.normal(size=(len(labels), 3)).astype(np.float32) + 40.0 * labels[:, None].astype(np.float32)
    points[80:120, 0] += far
    points[-9:, 1] += 12.0
    values = [points[:, :2].copy(), points.copy()]
    present = np.ones((len(labels), 2), dtype=bool)
    both = torch.from_numpy(points)
    look = split_tree.Look(both, both[None][:0], [torch.from_numpy(v) for v in values], torch.from_numpy(present), both)
    assert split_tree.islands(look, labels, 0) == dict.fromkeys(islands)
    assert literal_islands(points, values, present, labels, 0) == islands


def in_one_view(far, small=200, share=0.7, views=2):
    """Three clusters, of which the last view alone, which a share of the samples has, parts the one of 400 samples."""
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], [100, 400, 100])
    values = [rng.normal(size=(600, 4)).astype(np.float32) + 20.0 * labels[:, None] for _ in range(views)]
    present = np.ones((600, views), dtype=bool)
    present[:, -1] = rng.random(600) < share
    values[-1][100 : 100 + small, :2] += far
    values[-1][~present[:, -1]] = 0.0
    points = torch.from_numpy(rng.normal(size=(600, 6)) + 20.0 * labels[:, None]).float()
    parts = [torch.from_numpy(view).float() for view in values]
    return split_tree.Look(points, points[None][:0], parts, torch.from_numpy(present), torch.cat(parts, dim=1)), labels


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({"far": 6.0}, {1: 1}),  # as CD4 and CD8 cells, which RNA does not tell apart
        ({"far": 0.0}, {}),
        ({"far": 6.0, "small": 170}, {1: 1}),
        ({"far": 6.0, "small": 130}, {}),  # less than 0.75 of the mean cluster
        ({"far": 6.0, "share": 0.05}, {}),
        ({"far": 6.0, "views": 3}, {1: 2}),
    ],
)
def test_a_cluster_that_one_view_alone_shows_as_two_is_found(how, found):
    assert split_tree.islands(*in_one_view(**how), 0) == found


@pytest.mark.parametrize(("p_value", "found"), [(0.05 / 12 * 0.999, {1: 1}), (0.05 / 12, {}), (None, {})])
def test_the_level_of_what_one_view_shows_is_shared(monkeypatch, p_value, found):
    """By three clusters, two views and two ways of cutting."""
    look, labels = in_one_view(6.0)
    own = int(look.present[100:500, 1].sum())
    monkeypatch.setattr(split_tree, "valley_p_value", lambda _, sides: p_value if len(sides) == own else 1.0)
    assert split_tree.islands(look, labels, 0) == found


@pytest.mark.parametrize(
    ("count", "alone", "said"),
    [
        (1, [], "; 1 cluster of k-means fell apart, too"),
        (1, ["rna"], "; 1 cluster of k-means fell apart, too, in rna only"),
        (3, ["rna", "x", "rna"], "; 3 clusters of k-means fell apart, too, in rna and x only"),
        (3, ["rna"], "; 3 clusters of k-means fell apart, too, 1 of them in rna only"),
    ],
)
def test_islands_are_told_with_the_views_that_show_them(count, alone, said):
    found = number_decision([a_split(-1, 0, [40, 20], 2.0)], 60, ALL)
    assert words(replace(found, islands=count, alone=alone)).endswith(said)


@pytest.mark.parametrize(
    ("held", "count"), [({"rna": 0.9, "protein": 0.8}, 0), ({"rna": 0.0, "protein": 0.01}, 1), ({"rna": None}, 0)]
)
def test_seen_in_one_view_only_is_what_no_other_view_shows(held, count):
    """However strong the view is that shows it best."""
    split = {**a_split(-1, 0, [40, 20], 2.0), "held_out": held, "alone": "rna"}
    assert ("1 of the splits is seen in one view only" in words(number_decision([split], 60, ALL))) == bool(count)
