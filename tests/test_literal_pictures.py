"""What maps, charts and notebooks show of whom: each dot, bar and line beside what was worked out by hand."""

from __future__ import annotations

import itertools
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator

from run_folders import SPLITS, a_split
from viewfuse.comparison.ranks import Ranks, draw_critical_difference
from viewfuse.io.writers import Judged
from viewfuse.plots import fitted, pictures
from viewfuse.plots import layout as plane
from viewfuse.plots.fitted import FittedPlots
from viewfuse.plots.layout import Places, find_patterns, lacking, place_samples
from viewfuse.plots.pictures import draw_choice, draw_map, forks
from viewfuse.plots.style import PictureStyle, as_hex, distinct_colors, distinct_markers, seen_by_all
from viewfuse.report import charts
from viewfuse.report.html import CORNERS, templates

N = 40
ROWS = np.sort(np.random.default_rng(3).permutation(N)[:25])
PLACES = Places(ROWS, np.random.default_rng(4).normal(size=(2, 25)).astype(np.float32), N)
LABELS = np.array([(0, 5, 2, 2)[i % 4] if i % 7 else 7 for i in range(N)])
MASK = np.stack([np.arange(N) % 3 != 0, np.arange(N) % 5 != 1, np.arange(N) % 3 != 1], axis=1)
MASK[~MASK.any(axis=1), 0] = True
VIEWS = ["rna", "protein", "atac"]


@pytest.fixture
def figures(monkeypatch):
    """Figures instead of files."""
    kept = []

    def save(self, path, **_):
        kept.append(self)
        path.write_bytes(b"\x89PNG")

    monkeypatch.setattr(Figure, "savefig", save)
    return kept


def dots_of(axes):
    """Per place what is drawn there: colour, marker's number of corners, and whether it is full."""
    found = {}
    for dots in axes.collections:
        face, edge = dots.get_facecolor(), dots.get_edgecolor()
        is_full = len(face) > 0
        for x, y in dots.get_offsets():
            assert (x, y) not in found
            found[float(x), float(y)] = to_hex((face if is_full else edge)[0]), is_full
    return found


def at(place):
    return tuple(float(x) for x in PLACES.xy[:, place])


def test_each_dot_of_a_thinned_map_is_the_sample_that_stands_there(figures, tmp_path):
    draw_map(tmp_path / "map.png", PLACES, LABELS, MASK, VIEWS, title="t", tags={0: "a", 2: "b", 5: "c", 7: "d"})
    left, right = (dots_of(axes) for axes in figures[0].axes)
    colors = [as_hex(one) for one in distinct_colors(8)]  # by number, as on the page: 1, 3, 4 and 6 have no samples
    patterns = [tuple(row) for row in MASK.tolist()]
    counts = {one: patterns.count(one) for one in set(patterns)}
    order = sorted(counts, key=lambda one: (not all(one), -counts[one], one))
    shades = dict(zip(order, [to_hex("0.75"), *(as_hex(one) for one in distinct_colors(len(order)))], strict=False))
    assert len(left) == len(right) == 25
    for place, row in enumerate(ROWS):
        assert left[at(place)] == (colors[LABELS[row]], bool(MASK[row].all()))
        assert right[at(place)] == (shades[patterns[row]], True)
    names = [text.get_text() for text in figures[0].axes[0].get_legend().get_texts()]
    assert names == [f"{name} (n={(label == LABELS).sum()})" for name, label in zip("abcd", (0, 2, 5, 7), strict=True)]
    others = [text.get_text() for text in figures[0].axes[1].get_legend().get_texts()]
    assert others == [f"{lacking(np.array(one), VIEWS)} (n={counts[one]})" for one in order]
    assert figures[0]._suptitle.get_text() == "t\nt-SNE of the embedding; 25 of 40 samples are shown"
    for tag in figures[0].axes[0].texts:
        label = {"a": 0, "b": 2, "c": 5, "d": 7}[tag.get_text()]
        own = PLACES.xy[:, LABELS[ROWS] == label]
        middle = np.median(own, axis=1, keepdims=True)
        assert tag.xy == pytest.approx(own[:, ((own - middle) ** 2).sum(axis=0).argmin()])


def test_of_many_patterns_the_rarest_are_one_group_in_grey(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_MOST_PATTERNS", 2)
    draw_map(tmp_path / "map.png", PLACES, LABELS, MASK, VIEWS, title="t")
    present, sizes, of_sample = find_patterns(MASK)
    right = dots_of(figures[0].axes[1])
    shades = [to_hex("0.75"), as_hex(distinct_colors(1)[0]), to_hex("0.45")]
    for place, row in enumerate(ROWS):
        assert right[at(place)][0] == shades[min(of_sample[row], 2)]
    names = [text.get_text() for text in figures[0].axes[1].get_legend().get_texts()]
    assert names[-1] == f"{len(present) - 2} other patterns (n={sizes[2:].sum()})"


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("n_patterns", [2, 7, 8, 11])
def test_patterns_of_one_marker_differ_in_colour_for_all_eyes(complete, n_patterns):
    mask = np.array(
        [[int(bit) for bit in f"{number:04b}"] for number in range(15, 15 - n_patterns - 1, -1)], dtype=bool
    )
    groups = pictures.patterns_of(mask if complete else mask[1:], list("abcd"))
    seen = seen_by_all(np.array([to_rgb(color) for color in groups.colors]))
    for i, j in itertools.combinations(range(len(groups.names)), 2):
        if groups.markers[i] == groups.markers[j]:
            assert np.linalg.norm(seen[:, i] - seen[:, j], axis=1).min() > 0.1


def test_a_legend_lists_the_largest_groups_in_their_order(figures, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "_MOST_LISTED", 2)
    monkeypatch.setattr(pictures, "_MOST_TAGS", 3)
    draw_map(tmp_path / "map.png", PLACES, LABELS, np.ones((N, 2), bool), ["a", "b"], title="t")
    (axes,) = figures[0].axes
    sizes = {label: int((label == LABELS).sum()) for label in (0, 2, 5, 7)}
    largest = sorted(sorted(sizes, key=lambda label: -sizes[label])[:2])
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == [f"{label} (n={sizes[label]})" for label in largest]
    assert axes.get_legend().get_title().get_text() == "the 2 largest of 4"
    assert axes.get_xlabel() == "colour and marker: cluster"
    assert len(axes.texts) == 0
    assert all(full for _, full in dots_of(axes).values())


def test_patterns_are_counted_with_whole_samples_first():
    mask = np.array([[1, 0], [0, 1], [0, 1], [1, 1], [1, 0], [0, 1]], bool)
    present, sizes, of_sample = find_patterns(mask)
    assert present.tolist() == [[True, True], [False, True], [True, False]]
    assert sizes.tolist() == [1, 3, 2]
    assert of_sample.tolist() == [2, 1, 1, 0, 2, 1]
    assert lacking(mask[0], ["a", "b"]) == "without b"
    names = ["x" * 20, "y" * 20, "z"]
    assert lacking(np.array([False, False, True]), names) == "only z"
    assert lacking(np.array([True, False, True]), names, longest=28) == "without " + "y" * 20
    assert lacking(np.array([True, False, True]), names, longest=27) == "without " + "y" * 18 + "…"


def literal_between(point, known, xy):
    squares = [math.dist(point, one) ** 2 for one in known]
    slack = 1e-6 * sum(math.hypot(*one) ** 2 for one in known) / len(known) + 1e-12
    nearest = sorted(range(len(known)), key=lambda j: squares[j])[:5]
    weights = [1 / (squares[j] + slack) for j in nearest]
    return [sum(w * xy[c][j] for w, j in zip(weights, nearest, strict=True)) / sum(weights) for c in (0, 1)]


def test_samples_beyond_those_of_tsne_lie_between_their_five_nearest(monkeypatch):
    monkeypatch.setattr(plane, "MOST_BY_TSNE", 14)
    monkeypatch.setattr(plane, "MOST_PLACED", 27)
    monkeypatch.setattr(plane, "plane", lambda points: np.stack([points[:, 2] * 7, points[:, 0] - 3]))
    points = np.random.default_rng(1).normal(size=(33, 3)).astype(np.float32)
    found = place_samples(points)
    order = np.random.default_rng(0).permutation(33).tolist()
    first = sorted(order[:14])
    assert (found.rows.tolist(), found.n) == (sorted(order[:27]), 33)
    xy = [[points[j, 2] * 7 for j in first], [points[j, 0] - 3 for j in first]]
    for row, place in zip(found.rows.tolist(), found.xy.T, strict=True):
        own = (points[row, 2] * 7, points[row, 0] - 3)
        expected = own if row in first else literal_between(points[row].tolist(), points[first].tolist(), xy)
        assert place == pytest.approx(expected, abs=2e-4)


def test_few_points_are_drawn_along_their_principal_axes():
    points = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32) * [5, 1, 0.1, 0.1] + 3
    about = points - points.mean(axis=0)
    axes = np.linalg.svd(about)[2][:2]
    np.testing.assert_allclose(np.abs(plane.plane(points)), np.abs(axes @ about.T), atol=1e-4)
    assert plane.plane(points[:2, :1]).shape == (2, 2)


def test_tsne_starts_from_two_principal_components_of_a_small_size(monkeypatch):
    asked = {}

    class Recorder:
        def __init__(self, **given):
            asked.update(given)

        def fit_transform(self, points):
            return asked["init"]

    monkeypatch.setattr("sklearn.manifold.TSNE", Recorder)
    points = np.random.default_rng(0).normal(size=(31, 4)).astype(np.float32) * [5, 2, 1, 1]
    plane.plane(points)
    assert (asked["perplexity"], asked["max_iter"], asked["random_state"]) == (10.0, 500, 0)
    assert asked["init"][:, 0].std() == pytest.approx(1e-4, rel=1e-4)
    assert 0.2e-4 < asked["init"][:, 1].std() < 1e-4
    plane.plane(np.vstack([points] * 4))
    assert asked["perplexity"] == 30.0


def test_colours_are_those_that_were_chosen_once():
    first = ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#000000"]
    dark = ["#2f8fdc", "#e69f00", "#00b585", "#e8742c", "#d98cb8", "#8fd0f5", "#ffffff"]
    for on_dark, own, (low, high) in ((False, first, (0.3, 0.8)), (True, dark, (0.5, 0.95))):
        found = [as_hex(one) for one in distinct_colors(10, on_dark=on_dark)]
        assert found[:7] == own
        chosen = [[int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)] for text in own]
        grid = np.array([[r, g, b] for r in range(12) for g in range(12) for b in range(12)]) / 11
        light = seen_by_all(grid)[0, :, 0]
        grid = grid[(light > low) & (light < high)]
        seen = seen_by_all(grid)
        for text in found[7:]:  # as far as can be from all before it, for those who see the least difference
            near = np.min(
                [np.linalg.norm(seen - seen_by_all(np.array([c])), axis=2).min(axis=0) for c in chosen], axis=0
            )
            chosen.append(grid[near.argmax()])
            assert text == as_hex(chosen[-1])
    assert distinct_markers(9) == ["o"] * 7 + ["^", "D"]


def test_eyes_without_red_or_green_cones_see_what_was_published():
    """Machado et al. (2009): pure red to eyes without red cones, and without green ones, in linear light."""
    seen = seen_by_all(np.array([[1.0, 0, 0], [0.5, 0.5, 0.5]]))
    for eyes, linear in ((1, [0.152286, 0.114503, 0.0]), (2, [0.367322, 0.280085, 0.0])):
        as_srgb = [12.92 * x if x <= 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055 for x in linear]
        assert seen[eyes, 0] == pytest.approx(seen_by_all(np.array([as_srgb]))[0, 0], abs=1e-4)
        assert seen[eyes, 1] == pytest.approx(seen[0, 1], abs=1e-4)  # grey is grey to all


class Fake(FittedPlots, BaseEstimator):
    """A fitted model that never was."""

    def __init__(self):
        self.labels_ = np.where(LABELS == 7, 1, np.minimum(LABELS, 3))
        self.soft_labels_ = np.full((N, 5), 0.05, np.float32)
        self.soft_labels_[np.arange(N), self.labels_] = np.where(np.arange(N) % 4 == 1, 0.49, 0.5)
        self.embedding_ = np.zeros((N, 2), np.float32)
        self.view_names_ = VIEWS
        self.decisions_ = {"trust": {"why": "trust: <high>"}}
        self._places = (self.embedding_, PLACES)

    def fit(self):
        return self

    def _present(self):
        return MASK

    def judge(self):
        unsure = self.soft_labels_.max(axis=1) < 0.5
        return Judged(self.labels_, self.soft_labels_, unsure, np.arange(N) / N, np.arange(N) == 3)


@pytest.fixture
def ax():
    return Figure().subplots()


def test_each_dot_of_a_notebook_has_the_colour_of_its_sample(ax):
    model = Fake()
    model.plot_map(ax=ax)
    colors = [as_hex(one) for one in distinct_colors(5)]
    assert dots_of(ax) == {at(place): (colors[model.labels_[row]], True) for place, row in enumerate(ROWS)}
    sizes = np.bincount(model.labels_)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [f"{c} (n={sizes[c]})" for c in range(4)]
    assert ax.get_title() == "25 of 40 samples, by cluster"
    ax.clear()
    model.plot_map("missing", ax=ax)
    _, _, of_sample = find_patterns(MASK)
    shades = [to_hex("0.75"), *(as_hex(one) for one in distinct_colors(8))]
    assert dots_of(ax) == {at(place): (shades[of_sample[row]], True) for place, row in enumerate(ROWS)}
    sure = model.soft_labels_.max(axis=1)
    for name, values in (("confidence", sure), ("novelty", np.arange(N) / N), (np.arange(N) * 2, np.arange(N) * 2.0)):
        ax = Figure().subplots()
        model.plot_map(name, ax=ax)
        (dots,) = ax.collections
        assert dots.get_offsets().tolist() == PLACES.xy.T.astype(float).tolist()
        assert dots.get_array().tolist() == pytest.approx(values[ROWS].tolist())


def test_a_legend_of_a_notebook_lists_the_largest_groups_of_all_samples(ax, monkeypatch):
    monkeypatch.setattr(fitted, "_MOST_GROUPS", 2)
    given = np.array(list("zyxw"))[np.minimum(np.arange(N) // 5, 3)]
    Fake().plot_map(given, ax=ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["w (n=25)", "x (n=5)"]
    assert ax.get_legend().get_title().get_text() == "the given groups; the 2 largest of 4"
    colors = dict(zip("wxyz", (as_hex(one) for one in distinct_colors(4)), strict=True))
    assert dots_of(ax) == {at(place): (colors[given[row]], True) for place, row in enumerate(ROWS)}


def test_bars_are_sizes_and_sure_samples(ax):
    model = Fake()
    model.plot_clusters(ax=ax)
    heights = [bar.get_height() for bar in ax.patches]
    sure = model.soft_labels_.max(axis=1) >= 0.5
    assert heights[:5] == [(model.labels_ == c).sum() for c in range(5)]
    assert heights[5:] == [((model.labels_ == c) & sure).sum() for c in range(5)]
    assert heights[:5] != heights[5:]
    assert [bar.get_x() + bar.get_width() / 2 for bar in ax.patches[:5]] == pytest.approx(range(5))


def test_missing_views_are_drawn_by_pattern(ax, monkeypatch):
    monkeypatch.setattr(fitted, "_MOST_GROUPS", 3)
    Fake().plot_missing(ax=ax)
    present, sizes, _ = find_patterns(MASK)
    assert np.asarray(ax.images[0].get_array()).tolist() == present[:3].tolist()
    assert [text.get_text() for text in ax.get_yticklabels()] == [str(size) for size in sizes[:3]]
    assert ax.get_title() == f"Views that samples have (dark); {len(sizes) - 3} rarer patterns are left out"


def test_a_notebook_says_how_sure_each_cluster_is(monkeypatch):
    model, sure = Fake(), Fake().soft_labels_.max(axis=1)
    shown = model._repr_html_inner()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", shown)][1:]
    for c in range(4):
        own = model.labels_ == c
        assert rows[c] == [str(c), str(own.sum()), f"{sure[own].mean():.2f}"]
    assert rows[4] == ["4", "0", ""]
    assert f"5 clusters; confidence {sure.mean():.2f} on average<br>trust: &lt;high&gt;" in shown
    monkeypatch.setattr(fitted, "_MOST_GROUPS", 3)
    assert "<p>and 2 more clusters</p>" in model._repr_html_inner()


def test_the_tree_is_drawn_with_heights_and_sizes(figures, tmp_path):
    draw_choice(tmp_path / "k.png", {"splits": SPLITS, "chosen": 3, "kind": "clusters"})
    (axes,) = figures[0].axes
    lines = [(line.get_xydata().tolist(), line.get_linestyle()) for line in axes.lines]
    assert lines[:3] == [
        ([[2.5, 0.5], [2.5, 2.5]], "-"), ([[2.5, 0.5], [1.25, 0.5]], "-"), ([[2.5, 2.5], [0.25, 2.5]], "-"),
    ]  # fmt: skip
    assert lines[3:6] == [
        ([[1.25, 0], [1.25, 1]], "-"), ([[1.25, 0], [0, 0]], "-"), ([[1.25, 1], [0, 1]], "-"),
    ]  # fmt: skip
    assert {style for _, style in lines[6:]} == {":"}
    bars = [one.get_segments()[0].tolist() for one in axes.collections]
    assert np.allclose(bars[:2], [[[2.4, 1.5], [2.6, 1.5]], [[1.15, 0.5], [1.35, 0.5]]])  # the errors
    sizes = {text.get_text().strip(): text.xy for text in axes.texts if not text.get_text().startswith("p")}
    assert sizes == {"50": (0, 0), "40": (0, 1), "45": (0, 2), "15": (0, 3)}
    draw_choice(tmp_path / "k.png", {"splits": SPLITS[:1], "chosen": 1, "kind": "continuum"})
    assert figures[1].axes[0].get_title() == "1 cluster: a continuum"


@pytest.mark.parametrize("columns", [0, 1, 2])
def test_p_values_stand_inside_the_frame_and_above_their_line(figures, tmp_path, columns):
    style = PictureStyle(("png",), columns)
    draw_choice(tmp_path / "k.png", {"splits": SPLITS, "chosen": 3, "kind": "clusters"}, style)
    (axes,) = figures[0].axes
    assert axes.get_title() == ("" if columns else "3 clusters")
    frame = axes.get_window_extent()
    for text in axes.texts:
        box = text.get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1
        if text.get_text().startswith("p"):
            assert box.y0 > axes.transData.transform(text.xy)[1]


def test_a_split_is_drawn_no_higher_than_the_one_above():
    found = forks([a_split(-1, 0, [9, 8], 1.0), a_split(0, 1, [4, 4], 3.0), a_split(1, 0, [2, 2], -1.0)])
    assert [one.height for one in found] == [1.0, 1.0, 0.0]
    assert [one.ends for one in found] == [(0.0, 1.0), (0.0, 0.0), (0.0, 0.0)]
    assert [one.rows for one in found] == [(0.0, 2.25), (1.5, 3.0), (1.0, 2.0)]


def test_only_parts_that_are_not_divided_have_a_size(figures, tmp_path):
    """Also where the split below has no height, and ends where undivided parts do."""
    splits = [a_split(-1, 0, [9, 8], 1.0), a_split(0, 1, [5, 3], -1.0, stands=False)]
    draw_choice(tmp_path / "k.png", {"splits": splits, "chosen": 2, "kind": "clusters"})
    sizes = [text.get_text().strip() for text in figures[0].axes[0].texts if not text.get_text().startswith("p")]
    assert sizes == ["9", "5", "3"]
    assert re.findall(r"<text[^>]*>(\d+)</text>", charts.split_tree(splits)) == ["9", "5", "3"]
    drawn = charts.split_tree([{**splits[0], "p_value": 1e-9}, {**splits[1], "p_value": 0.25}])
    assert re.findall(r"<text[^>]*>(p [^<]*)</text>", drawn) == ["p &lt; 0.0001", "p = 0.25"]


def test_the_forks_of_a_page_begin_where_their_sides_end():
    splits = [a_split(-1, 0, [9, 8], 2.0), a_split(0, 1, [5, 3], 1.0)]
    drawn = [
        one
        for one in re.findall(r'points="([^"]+)"', charts.split_tree(splits))
        if len(re.findall(r"[\d.]+", one)) == 8
    ]
    places = [[float(number) for number in re.findall(r"[\d.]+", one)] for one in drawn]
    # A part that is not divided ends at the right, 344; the other where its own split is, half as high.
    assert [(one[0], one[2], one[6]) for one in places] == [(344, 74, 209), (344, 209, 344)]


def test_mean_ranks_are_drawn_with_bars_over_what_may_be_chance(figures, tmp_path):
    ranks = SimpleNamespace(
        names=["a", "b", "c"], mean_ranks=[1.25, 1.75, 3.0], critical_difference=0.8, p_value=0.012, count=8,
        alike=lambda: [(0, 1)],
    )  # fmt: skip
    draw_critical_difference(tmp_path / "cd.png", ranks, title="t")
    (axes,) = figures[0].axes
    lines = [line.get_xydata().tolist() for line in axes.lines]
    assert lines[0] == [[1, 0], [3, 0]]
    assert [[1, 0.85], [1.8, 0.85]] in lines
    assert [[pytest.approx(1.21), -0.25], [pytest.approx(1.79), -0.25]] in lines
    texts = {text.get_text().strip(): text.get_position() for text in axes.texts}
    assert "critical difference 0.80" in texts
    assert (texts["a  1.25"][0], texts["b  1.75"][0], texts["3.00  c"][0]) == (0.85, 0.85, 3.15)
    assert texts["a  1.25"][1] > texts["b  1.75"][1]
    below = -0.25 * 2 - 0.15
    assert [[1.75, 0], [1.75, pytest.approx(below - 0.55)], [0.85, pytest.approx(below - 0.55)]] in lines
    assert [[3.0, 0], [3.0, pytest.approx(below)], [3.15, pytest.approx(below)]] in lines
    assert [texts[str(rank)][0] for rank in (1, 2, 3)] == [1, 2, 3]
    assert "mean ranks over 8 data sets" in figures[0]._suptitle.get_text()
    assert "Friedman p = 0.012" in figures[0]._suptitle.get_text()
    assert axes.get_xlim() == pytest.approx((1 - 0.9, 3.9))
    ranks.critical_difference = 7.5  # of few sets: more than there are methods
    draw_critical_difference(tmp_path / "cd.png", ranks, title="t")
    assert figures[1].axes[0].get_xlim()[1] == pytest.approx(1 + 7.5 + 0.1)


def test_names_and_ranks_have_room_in_one_column(figures, tmp_path):
    names = tuple(f"method_{i}_of_{'some' * i}" for i in range(10))
    ranks = Ranks(names, tuple(1 + 0.9 * i for i in range(10)), 3.9, 0.01, 12)
    draw_critical_difference(tmp_path / "cd.png", ranks, title="t", style=PictureStyle(columns=1))
    figures[0].draw_without_rendering()
    boxes = [text.get_window_extent() for text in figures[0].axes[0].texts]
    whole = figures[0].bbox
    for i, box in enumerate(boxes):
        assert whole.x0 <= box.x0 <= box.x1 <= whole.x1
        assert not any(box.overlaps(other) for other in boxes[:i])


def attributes(html, tag, name):
    return re.findall(rf'<{tag}[^>]*?\b{name}="([^"]*)"', html)


def test_bars_of_the_page_have_the_length_of_their_share():
    parts = templates().get_template("parts.html").module
    assert attributes(parts.bar(0.256, "w"), "rect", "width") == ["100", "25.6"]
    assert attributes(parts.bar(1.7, "w"), "rect", "width")[1] == "100.0"
    more, less = parts.difference(1.5, 6), parts.difference(-3, 6)
    assert (attributes(more, "rect", "x")[0], attributes(more, "rect", "width")[0]) == ("50.0", "12.5")
    assert (attributes(less, "rect", "x")[0], attributes(less, "rect", "width")[0]) == ("25.0", "25.0")
    assert ('class="more"' in more, 'class="less"' in less) == (True, True)
    boxes = parts.boxes([("a", True), ("b", False), ("c", True)])
    assert attributes(boxes, "rect", "class") == ["there", "missing", "there"]
    assert attributes(boxes, "rect", "x") == ["1", "15", "29"]
    assert 'aria-label="has a, c"' in boxes


def test_curves_of_the_page_go_from_corner_to_corner():
    drawn = charts.line_chart([(1, 4.0), (2, 1.0), (5, 2.5)], "loss", "epoch", since=3)
    assert attributes(drawn, "polyline", "points")[1] == "46.0,10.0 112.0,124.0 310.0,67.0"
    assert attributes(drawn, "circle", "cx") == []
    assert attributes(drawn, "rect", "x") == ["178.0"]
    assert attributes(drawn, "rect", "width") == ["132.0"]
    assert re.findall(r"<text[^>]*>([^<]*)</text>", drawn) == ["1", "4", "1", "5", "epoch"]
    assert 'aria-label="loss: from 4 at 1 to 2.5 at 5"' in drawn
    assert "<rect" not in charts.line_chart([(1, 4.0), (2, 1.0)], "loss", "epoch", since=1)
    flat = charts.line_chart([(3, 2.0)], "loss", "epoch")
    assert attributes(flat, "circle", "cx") == ["46.0"]


def test_the_merge_tree_joins_branches_where_they_are():
    drawn = charts.merge_tree([([2], [0], 1.0), ([1], [0, 2], 4.0)], 3)
    assert re.findall(r"<text[^>]*>(\d)</text>", drawn) == ["1", "2", "0"]
    first, second = attributes(drawn, "polyline", "points")
    assert first == "30.0,28.0 97.5,28.0 97.5,46.0 30.0,46.0"
    assert second == "30.0,10.0 300.0,10.0 300.0,37.0 97.5,37.0"


def test_marks_of_the_page_are_mirror_images_of_themselves():
    for shape, corners in CORNERS.items():
        assert {(-x, y) for x, y in corners} == set(corners), shape
        assert 4 <= max(abs(number) for corner in corners for number in corner) <= 5, shape
    for shape in "sDPX":
        assert {(x, -y) for x, y in CORNERS[shape]} == set(CORNERS[shape])
        assert {(y, x) for x, y in CORNERS[shape]} == set(CORNERS[shape])
    assert {(x, -y) for x, y in CORNERS["^"]} == set(CORNERS["v"])


def test_the_name_of_the_highest_cluster_stays_inside_of_a_small_map(figures, tmp_path):
    xy = np.array([[0.0, 1, 0, 1], [0, 0, 5, 5]], dtype=np.float32)
    mask = np.array([[True, True], [True, False]] * 2)
    shown = Places(np.arange(4), xy, 4), np.array([0, 0, 1, 1]), mask, ["a", "b"]
    draw_map(tmp_path / "map.png", *shown, title="t", style=PictureStyle(columns=1))
    figures[0].draw_without_rendering()
    axes = figures[0].axes[0]
    frame = axes.get_window_extent()
    for text in axes.texts:
        assert text.get_window_extent().y1 + 2 <= frame.y1
