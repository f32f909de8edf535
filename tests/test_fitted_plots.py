"""What fitted models draw and show in notebooks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

from conftest import make_blobs
from run_folders import SPLITS
from viewfuse import URRL, Config
from viewfuse.errors import DataError, SettingError
from viewfuse.plots import layout


@pytest.fixture(scope="module")
def model():
    views, _, _ = make_blobs(40, 3)
    named = dict(zip(["rna", "<b>protein", "image"], views, strict=True))
    return URRL(
        3, config=Config(pretrain_epochs=3, joint_epochs=1, hidden_dim=16, embedding_dim=8), random_state=0
    ).fit(named)


@pytest.fixture
def ax():
    return Figure().subplots()


def legend(ax) -> list[str]:
    return sorted(text.get_text() for text in ax.get_legend().get_texts())


@pytest.mark.usefixtures("quick_map")
def test_the_map_is_coloured_by_clusters_by_missing_views_and_by_what_is_given(model, ax):
    assert model.plot_map(ax=ax) is ax
    sizes = np.bincount(model.labels_, minlength=3)
    assert legend(ax) == [f"{label} (n={size})" for label, size in enumerate(sizes)]
    assert sum(len(dots.get_offsets()) for dots in ax.collections) == 40
    ax.clear()
    words = legend(model.plot_map("missing", ax=ax))
    mask = model._model.stored.present.numpy()
    assert f"all views (n={mask.all(axis=1).sum()})" in words
    assert sum(int(line.split("n=")[1][:-1]) for line in words) == 40
    ax.clear()
    assert legend(model.plot_map(["a", "b"] * 20, ax=ax)) == ["a (n=20)", "b (n=20)"]


def test_places_are_looked_for_once_and_are_not_saved(model, ax, monkeypatch):
    calls = []
    monkeypatch.setattr(layout, "plane", lambda points: calls.append(len(points)) or points[:, :2].T)
    monkeypatch.setattr(model, "_places", None)
    model.plot_map(ax=ax)
    model.plot_map("confidence", ax=ax)
    assert calls == [40]
    assert pickle.loads(pickle.dumps(model))._places is None


@pytest.mark.usefixtures("quick_map")
def test_samples_without_a_value_are_drawn_and_counted(model, ax):
    values = np.where(np.arange(40) < 30, np.arange(40.0), np.nan)
    model.plot_map(values, ax=ax)
    assert [len(dots.get_offsets()) for dots in ax.collections] == [10, 30]
    assert ax.figure.axes[1].get_ylabel() == "the given values; grey: 10 without"
    assert ax.get_title() == "40 samples, by the given values"


def test_long_names_below_the_axes_do_not_touch(model, ax, monkeypatch):
    names = {0: "a fairly long name of a cluster", 1: "B", 2: "another long name of cells"}
    monkeypatch.setattr(model, "cluster_names_", names)
    texts = model.plot_clusters(ax=ax).get_xticklabels()
    assert [(text.get_text(), text.get_ha(), text.get_rotation_mode()) for text in texts] == [
        (name, "right", "anchor") for name in names.values()
    ]
    ax.clear()
    monkeypatch.setattr(model, "view_names_", ["x" * 30, "y", "z" * 50])
    assert [text.get_ha() for text in model.plot_missing(ax=ax).get_xticklabels()] == ["right"] * 3
    assert ax.get_xticklabels()[2].get_text() == "z" * 39 + "…"


def test_colours_that_there_are_not(model, ax):
    with pytest.raises(SettingError, match=r"color must be 'cluster', .* got 'age'"):
        model.plot_map("age", ax=ax)
    with pytest.raises(SettingError, match=r"color has the shape \(3,\); give one value for each of 40 samples"):
        model.plot_map([1, 2, 3], ax=ax)


def test_clusters_and_missing_views(model, ax):
    heights = [bar.get_height() for bar in model.plot_clusters(ax=ax).patches]
    assert heights[:3] == np.bincount(model.labels_, minlength=3).tolist()
    ax.clear()
    model.plot_missing(ax=ax)
    image = ax.images[0].get_array()
    assert image.shape[1] == 3
    assert image[0].all()
    assert [text.get_text() for text in ax.get_xticklabels()] == ["rna", "<b>protein", "image"]
    assert sum(int(text.get_text()) for text in ax.get_yticklabels()) == 40


@pytest.mark.parametrize("plot", ["plot_map", "plot_clusters", "plot_missing", "plot_k"])
def test_a_model_that_is_not_fitted_is_not_drawn(plot):
    with pytest.raises(NotFittedError, match="is not fitted yet"):
        getattr(URRL(), plot)()


def test_k_is_drawn_where_it_was_chosen(model, ax, monkeypatch):
    with pytest.raises(DataError, match="you set the number of clusters"):
        model.plot_k(ax=ax)
    monkeypatch.setitem(model.decisions_, "n_clusters", {"chosen": 3, "kind": "clusters", "splits": SPLITS})
    drawn = model.plot_k(ax=ax)
    assert drawn.get_title() == "3 clusters"
    assert {text.get_text().strip() for text in drawn.texts} == {
        "p = 0.001",
        "p < 0.0001",
        "p = 0.25",
        "50",
        "40",
        "45",
        "15",
    }


def test_notebooks_show_what_was_found_and_before_it_the_diagram(model):
    shown = model._repr_mimebundle_()["text/html"]
    assert shown == model._repr_html_()
    assert "<b>URRL</b>, fitted on 40 samples in 3 views" in shown
    assert shown.count("<tr>") == 4
    assert "<b>protein" not in shown
    assert "sk-" in URRL(3)._repr_html_()
