"""Maps: colours that nobody confuses, sizes of clusters, and which views are missing."""

from __future__ import annotations

import os
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from viewfuse.cli import fit, main
from viewfuse.cli.inspect import write_choice
from viewfuse.plots import layout
from viewfuse.plots.layout import lacking
from viewfuse.plots.pictures import draw_map, why_not_drawn
from viewfuse.plots.style import ON_SCREEN, PictureStyle, distinct_colors, distinct_markers, seen_by_all

MASK = np.arange(60).reshape(20, 3) % 7 > 0


def least_distance(colors, eyes) -> float:
    seen = seen_by_all(colors)[eyes]
    apart = np.linalg.norm(seen[:, None] - seen[None], axis=2)
    return float(apart[~np.eye(len(colors), dtype=bool)].min())


@pytest.mark.parametrize(("n", "bound"), [(2, 0.25), (7, 0.07), (20, 0.07), (28, 0.05), (60, 0.03)])
def test_colors_are_apart_whoever_looks(n, bound):
    colors = distinct_colors(n)
    assert colors.shape == (n, 3)
    assert len(np.unique(colors, axis=0)) == n
    assert ((colors >= 0) & (colors <= 1)).all()
    for eyes in range(3):  # all cones, no red ones, no green ones
        assert least_distance(colors, eyes) > bound
    assert np.array_equal(colors, distinct_colors(70)[:n])  # more clusters leave the first ones as they are
    assert set(distinct_markers(7)) == {"o"}
    assert len(set(distinct_markers(60))) == 7


def test_oklab_is_that_of_its_inventor():
    assert seen_by_all(np.ones((1, 3)))[0, 0] == pytest.approx([1, 0, 0], abs=1e-6)
    assert seen_by_all(np.array([[1.0, 0, 0]]))[0, 0] == pytest.approx([0.6280, 0.2249, 0.1258], abs=1e-4)


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draw without a search for coordinates, and give what stands on the panels."""
    figures = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k)))
    monkeypatch.setattr(layout, "plane", lambda points: points[:, :2].T)

    def draw(labels, mask, names, **options):
        labels = np.asarray(labels)
        points = np.random.default_rng(0).normal(size=(len(labels), 2)).astype(np.float32)
        draw_map(
            tmp_path / "map.png",
            layout.place_samples(points),
            labels,
            np.asarray(mask),
            names,
            title="a title",
            **options,
        )
        assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
        return [
            (panel.get_xlabel(), [text.get_text() for text in panel.get_legend().get_texts()], panel)
            for panel in figures[-1].axes
        ]

    return draw


@pytest.mark.parametrize(
    ("columns", "width"),
    [pytest.param(0, 17, marks=pytest.mark.slow), (1, 3.5), pytest.param(2, 7.2, marks=pytest.mark.slow)],
)
def test_maps_have_the_width_that_was_asked_for(drawn, columns, width):
    ((_, _, panel), _) = drawn([0] * 9 + [1] * 11, MASK, ["a", "b", "c"], style=PictureStyle(("png", "svg"), columns))
    assert panel.figure.get_figwidth() == width
    assert bool(panel.figure.get_suptitle()) == (columns == 0)
    inside = panel.xaxis.label.get_window_extent()
    assert inside.x0 > -1
    assert inside.x1 < panel.figure.bbox.x1 + 1


def test_maps_have_the_formats_that_were_asked_for_and_the_same_map_the_same_files(drawn, tmp_path):
    seen = []
    for _ in range(2):
        drawn([0] * 9 + [1] * 11, np.ones_like(MASK), ["a", "b", "c"], style=PictureStyle(("png", "svg", "pdf"), 1))
        seen.append({path.suffix: path.read_bytes() for path in tmp_path.iterdir()})
    files = seen[0]
    assert files == seen[1]
    assert files[".svg"].startswith(b"<?xml")
    assert files[".pdf"].startswith(b"%PDF")
    assert b"/FontFile2" in files[".pdf"]  # TrueType, embedded
    assert b"/Type3" not in files[".pdf"]


@pytest.mark.parametrize("formats", ["", "jpg", "png;svg"])
def test_an_unknown_format_is_refused_before_any_work(tmp_path, formats):
    result = CliRunner().invoke(
        main, ["fit", str(tmp_path / "a.csv"), "--out", str(tmp_path / "o"), "--format", formats]
    )
    assert result.exit_code == 2
    assert "--format must be some of png, svg, pdf" in result.output


def test_places_as_a_table_have_no_number_for_samples_without_one():
    table = layout.Places(np.array([0, 2]), np.array([[1, 2], [3, 4]], dtype=np.float32), 3).table()
    assert np.array_equal(table, [[1, 3], [np.nan, np.nan], [2, 4]], equal_nan=True)


def test_sizes_of_clusters_and_what_is_missing_stand_in_the_legends(drawn):
    mask = np.ones((50, 3), dtype=bool)
    mask[:12, 0], mask[12:17, 1:] = False, False
    (words, clusters, left), (others, patterns, _) = drawn([0] * 30 + [3] * 20, mask, ["rna", "protein", "atac"])
    assert clusters == ["0 (n=30)", "3 (n=20)"]
    assert patterns == ["all views (n=33)", "without rna (n=12)", "only rna (n=5)"]
    assert words == "colour and number: cluster; hollow: some views missing"
    assert others == "colour: which views are missing"
    assert [text.get_text() for text in left.texts] == ["0", "3"]


def test_where_nothing_is_missing_there_is_one_panel(drawn):
    ((words, clusters, panel),) = drawn([0, 1] * 10, np.ones((20, 2), dtype=bool), ["a", "b"], tags={0: "x", 1: "y"})
    assert words == "colour and number: cluster"
    assert clusters == ["x (n=10)", "y (n=10)"]
    assert [text.get_text() for text in panel.texts] == ["x", "y"]


def test_of_many_patterns_the_rest_is_one_and_sizes_count_every_sample(drawn, monkeypatch):
    monkeypatch.setattr(layout, "MOST_PLACED", 40)
    mask = np.array([[bool(row >> v & 1) for v in range(4)] for row in range(1, 16)] * 8)
    (_, clusters, _), (_, patterns, _) = drawn(np.arange(120) % 2, mask, list("abcd"))
    assert clusters == ["0 (n=60)", "1 (n=60)"]
    assert len(patterns) == 8
    assert patterns[-1] == "8 other patterns (n=64)"
    assert sum(int(line.split("n=")[1][:-1]) for line in patterns) == 120


@pytest.mark.slow
def test_more_clusters_than_a_legend_holds(drawn):
    labels = np.concatenate([np.arange(70), np.arange(60)])
    ((words, clusters, panel),) = drawn(labels, np.ones((130, 1), dtype=bool), ["a"])
    assert len(clusters) == 60
    assert all(line.endswith("(n=2)") for line in clusters)
    assert panel.get_legend().get_title().get_text() == "the 60 largest of 70"
    assert words == "colour and marker: cluster"
    shades = {tuple(dots.get_facecolor()[0]) for dots in panel.collections if len(dots.get_offsets())}
    assert len(shades) == 70  # no colour stands for two clusters


def test_many_missing_views_are_told_by_those_that_are_there():
    names = ["pixels", "fourier", "karhunen", "zernike", "profile", "shape"]
    assert lacking(np.array([0, 0, 0, 1, 1, 0], dtype=bool), names) == "only zernike, profile"
    assert lacking(np.array([1, 1, 1, 0, 1, 1], dtype=bool), names) == "without zernike"


def test_one_sample_has_a_place():
    assert layout.plane(np.ones((1, 5), dtype=np.float32)).tolist() == [[0.0], [0.0]]


def test_of_many_samples_those_that_tsne_does_not_place_lie_among_their_nearest(monkeypatch):
    points = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32)
    points[:150] += 50
    monkeypatch.setattr(layout, "plane", lambda points: points.T)
    monkeypatch.setattr(layout, "MOST_BY_TSNE", 100)
    monkeypatch.setattr(layout, "MOST_PLACED", 250)
    placed = layout.place_samples(points)
    assert (placed.n, len(placed.rows), placed.xy.shape) == (300, 250, (2, 250))
    assert (np.diff(placed.rows) > 0).all()
    assert np.abs(placed.xy.T - points[placed.rows]).max() < 2.5  # the clouds are 50 apart
    assert np.array_equal(placed.xy[0] > 25, placed.rows < 150)


def test_colors_for_a_dark_ground_are_light_and_apart():
    colors = distinct_colors(20, on_dark=True)
    assert seen_by_all(colors)[0, :, 0].min() > 0.5
    for eyes in range(3):
        assert least_distance(colors, eyes) > 0.05


def test_settings_of_matplotlib_neither_hinder_a_map_nor_are_changed(drawn, monkeypatch):
    used = matplotlib.get_backend()
    matplotlib.use("svg")
    try:
        with matplotlib.rc_context({"text.usetex": True}):
            ((_, _, panel), _) = drawn([0, 1, 1, 0], [[True, True]] * 3 + [[True, False]], ["a", "b"])
            assert matplotlib.rcParams["text.usetex"]
        assert not panel.xaxis.label.get_usetex(), "nobody has LaTeX"
        assert matplotlib.get_backend() == "svg", "the backend is the user's"
    finally:
        matplotlib.use(used)


def test_a_backend_that_is_not_there_is_no_matter_at_the_command_line(monkeypatch, tmp_path):
    monkeypatch.setenv("MPLBACKEND", "nonsense")  # matplotlib cannot be imported then
    CliRunner().invoke(main, ["info", str(tmp_path)])
    assert os.environ["MPLBACKEND"] == "Agg"


def test_a_picture_that_cannot_be_drawn_costs_no_run(monkeypatch, tmp_path, capsys):
    def fail(*_, **__):
        raise RuntimeError("no LaTeX,\nno picture")

    monkeypatch.setattr(fit, "draw_run", fail)
    monkeypatch.setattr(fit, "draw_choice", fail)
    fit._draw(tmp_path, SimpleNamespace(decisions_={"n_clusters": {}}), ON_SCREEN)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("there is no map.png and no k.png: matplotlib failed (RuntimeError: no LaTeX, no picture)")
    write_choice(tmp_path, {"splits": ["no split"]}, ON_SCREEN)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("k.png is not there: matplotlib failed (TypeError:")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["choice.json"]
    assert why_not_drawn(lambda: None) is None


@pytest.mark.parametrize("n_known", [3, 5, 8])
def test_a_sample_lies_at_the_weighted_mean_of_its_five_nearest_however_few_there_are(n_known):
    rng = np.random.default_rng(1)
    known, xy = rng.normal(size=(n_known, 4)).astype(np.float32), rng.normal(size=(2, n_known)).astype(np.float32)
    points = 3 * rng.normal(size=(5, 4)).astype(np.float32)
    expected = []
    for point in points:
        apart = [float(((point - other) ** 2).sum()) for other in known]
        nearest = sorted(range(n_known), key=lambda i: apart[i])[:5]
        weights = [1 / (apart[i] + 1e-6 * float((known**2).sum(axis=1).mean())) for i in nearest]
        expected.append(sum(w * xy[:, i] for w, i in zip(weights, nearest, strict=True)) / sum(weights))
    np.testing.assert_allclose(layout._between_nearest(points, known, xy), np.transpose(expected), rtol=1e-4, atol=1e-5)
