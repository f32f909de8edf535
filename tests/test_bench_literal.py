"""What benchmarks measure, in numbers: data sets, sizes, floors, and the pictures' panels."""

from __future__ import annotations

from dataclasses import asdict

import pytest
import torch

from benchmarks import machine
from benchmarks.clusters import criteria, experiment, synthetic_sets
from benchmarks.experiments import choices, imputation, plans, published, synthetic
from benchmarks.experiments.catalogue import CATALOGUE
from benchmarks.speed import child, measure, roofline, wide
from viewfuse.methods.urrl.config import Config

SETS = {
    "handwritten": (2000, (240, 76, 216, 47, 64, 6), 10, 4, (100, 100)),
    "caltech101_7": (1400, (40, 254, 1984, 512, 928), 7, 3, (100, 100)),
    "aloi_deep": (10800, (2048, 4096, 2048), 100, 2, (15, 0)),
    "scene15": (4485, (20, 59), 15, 1, (50, 0)),
    "bdgp": (2500, (1750, 79), 5, 1, (60, 60)),
    "reuters": (18758, (10, 10), 6, 1, (10, 10)),
    "caltech7x200_reextracted": (1400, (40, 254, 1984, 512, 928), 7, 3, None),
    "landuse21": (2100, (20, 59, 40), 21, 2, None),
    "citeseq_inhouse1182": (1182, (1000, 10), 6, 1, None),
    "tcga_brca150": (150, (200, 184, 142), 3, 2, None),
    "3sources": (169, (3560, 3631, 3068), 6, 2, None),
    "bbcsport": (544, (3183, 3203), 5, 1, None),
    "ngs": (500, (2000, 2000, 2000), 5, 2, None),
    "reuters1200": (1200, (2000, 2000, 2000, 2000, 2000), 6, 3, None),
    "movies": (617, (1878, 1398), 17, 1, None),
    "prokaryotic": (551, (393, 3, 438), 4, 2, None),
    "proteinfold": (694, (27,) * 12, 27, 8, None),
    "mnist4": (4000, (30, 9, 30), 4, 2, None),
    "3sources_partial": (416, (3560, 3631, 3068), 6, 0, None),
    "miniacc_partial": (92, (198, 198, 33, 97, 471), 3, 0, None),
    "synthetic_balanced": (800, (10, 20, 15), 5, 1, None),
    "synthetic_imbalanced": (742, (10, 20, 15), 5, 1, None),
    "synthetic_noise_view": (800, (10, 20, 15, 15), 5, 1, None),
    "synthetic_duplicated_view": (800, (10, 20, 15, 10), 5, 1, None),
    "synthetic_rings": (720, (10, 20, 15), 3, 1, None),
    "synthetic_many_missing": (800, (10, 20, 15), 5, 2, None),
    "handwritten_noise_view": (2000, (240, 76, 216, 47, 64, 6, 15), 10, 4, None),
    "synthetic_95_5": (1000, (10, 12), 2, 1, None),
    "synthetic_90_8_2": (300, (10, 12), 3, 1, None),
    "synthetic_90_8_2_of_500": (500, (10, 12), 3, 1, None),
    "synthetic_halves": (787, (10, 12, 9), 6, 1, None),
    "synthetic_geometric": (1124, (15, 12, 10), 10, 1, None),
    "synthetic_outliers": (300, (10, 12), 3, 1, None),
    "synthetic_cigars": (300, (4, 5), 3, 1, None),
    "handwritten_unequal": (1050, (240, 76, 216, 47, 64, 6), 10, 4, None),
    "citeseq_cut": (1009, (1000, 10), 6, 1, None),
    "prokaryotic_cut": (462, (393, 3, 438), 4, 2, None),
    "bbcsport_cut": (442, (3183, 3203), 5, 1, None),
}
"""Samples, widths, classes, views that an incomplete sample lacks, and the paper's epochs."""
OF_THE_PAPER = {"handwritten", "caltech101_7", "aloi_deep", "scene15", "bdgp", "reuters"}


def test_data_sets_are_those_of_the_paper_and_of_the_collections():
    found = {key: (one.n, one.widths, one.classes, one.missing_number, one.epochs) for key, one in CATALOGUE.items()}
    assert found == SETS
    assert {key for key, one in CATALOGUE.items() if one.in_paper} == OF_THE_PAPER
    assert CATALOGUE["handwritten"].files == ("handwritten6views",)
    assert CATALOGUE["caltech101_7"].files == ("caltech5v",)
    assert CATALOGUE["aloi_deep"].files == ("aloideep3v",)
    assert CATALOGUE["reuters"].files == ("reutersdim10",)


def test_synthetic_sets_are_as_large_as_the_catalogue_says():
    assert (synthetic.WIDTHS, synthetic.NOISE_WIDTH) == ((10, 20, 15), 15)
    assert synthetic.EQUAL == (160,) * 5
    assert synthetic.UNEQUAL == (400, 190, 90, 42, 20)
    assert synthetic.RINGS == (240, 240, 240)
    for key, make in synthetic.MAKERS.items():
        views, labels = make()
        n, widths, classes, _, _ = SETS[key]
        assert (len(labels), tuple(view.shape[1] for view in views), len(set(labels.tolist()) - {-1})) == (
            n,
            widths,
            classes,
        )


def test_what_a_speed_bench_measures():
    assert asdict(measure.Size()) == {
        "every": 1, "portions": 4, "neighbor_counts": (2_000, 5_000, 20_000), "scaling_counts": (1_000, 10_000),
        "most_plain": 1_000, "epochs": 1, "seeds": (), "most_epochs": "auto", "side": None, "floats": None,
        "wide": asdict(wide.WideSize()),
    }  # fmt: skip
    assert asdict(measure.FULL) == asdict(measure.Size()) | {
        "portions": 9, "scaling_counts": (1_000, 10_000, 100_000, 1_000_000), "most_plain": 10_000, "epochs": "auto",
        "seeds": (0, 1, 2), "wide": asdict(wide.WideSize()) | {"sparse_rows": 100_000},
    }  # fmt: skip
    assert asdict(wide.WideSize()) == {
        "rows": 1_000, "columns": (20_000, 500), "narrow": (256, 256), "sparse_rows": 10_000,
        "sparse_columns": 30_000, "filled": 0.03, "texts": 169, "words": 3_500, "epochs": "auto", "portions": 9,
    }  # fmt: skip
    assert (measure.TARGET, measure._NEIGHBOR_COLUMNS, measure._NEIGHBORS) == (0.95, 64, 9)
    assert (child.WIDTHS, child.N_CLUSTERS, child.WEIGHT, child._MISSING) == ((64, 128, 32), 10, 0.1, 0.3)
    assert machine._SIDE == {"cpu": 2048, "cuda": 8192}
    assert machine._COPIED_FLOATS == {"cpu": 67_108_864, "cuda": 268_435_456}
    assert machine._TRIES == 7


def test_the_floor_of_a_step_by_hand():
    settings = Config(n_clusters=3, batch_size=8, n_neighbors=4)
    traffic = 2 * 2 * 8 * 4 * (5 + 8) + 4 * roofline.layer_outputs((5, 8), settings)
    counts = roofline.counted((5, 8), settings)
    assert counts["megabytes"] == pytest.approx(4 * (10 * counts["weights"] + traffic) / 1e6)
    assert counts["gflop_ours"] == pytest.approx(6 * roofline.multiply_adds((5, 8), settings, 1) / 1e9)
    bound = roofline.lower_bound({"gflop_ours": 3.0, "megabytes": 40.0}, {"gflops": 500.0, "copy_gb_per_second": 8.0})
    assert bound == {"arithmetic_ms": 6.0, "traffic_ms": 5.0, "floor_ms": 6.0}


def test_how_far_a_step_is_from_its_floor(monkeypatch):
    monkeypatch.setattr(machine, "peaks", lambda *_: {"gflops": 100.0, "copy_gb_per_second": 10.0})
    found = measure.step_floor(torch.device("cpu"), measure.Size(every=50), 20.0)
    expected = roofline.counted(SETS["handwritten"][1], Config(n_clusters=10, clustering_weight=0.1))
    assert found["weights"] == expected["weights"]
    assert found["ours_ms"] == 50.0
    assert found["times_the_floor"] == pytest.approx(
        50.0 / max(expected["gflop_ours"] * 10, expected["megabytes"] / 10)
    )


def test_plans_and_criteria_in_numbers():
    assert (imputation.RATE, imputation.SEEDS) == (0.5, 3)
    assert imputation.DATA == ("citeseq_inhouse1182", "bdgp", "handwritten", "tcga_brca150")
    assert published.POOLED_RATES == (*experiment.RATES, 0.75) == (0.0, 0.25, 0.5, 0.75)
    assert plans.ON_THE_CPU == ("nemo", "pimvc", "kmeans-mean", "kmeans-knn")
    assert (choices._CLEARLY, choices._FAR_BELOW, choices._FIRST_JUDGED) == (1.0, 2.0, 5)
    assert choices.SIMPLE == ("kmeans-knn", "nemo", "pimvc")
    assert (synthetic_sets.KS, synthetic_sets._WIDTHS, synthetic_sets._SAMPLES) == (
        (2, 3, 5, 8, 12, 20, 40, 100),
        (12, 18, 15),
        800,
    )
    assert (criteria._REFERENCES, criteria._ROUNDS, experiment._FIRST_MASK) == (3, 30, 1_000)
