"""Draw the map of the start page: `python docs/figures/map.py` fits the data of the demo and writes images/map.png."""

from pathlib import Path

from matplotlib import pyplot

from viewfuse import URRL
from viewfuse.datasets import HANDWRITTEN_VIEWS, load_handwritten
from viewfuse.metrics import clustering_accuracy
from viewfuse.missing import apply_mask, paper_mask


def main() -> None:
    """Half of the samples lose four of their six views, as in `make demo`."""
    views, digits = load_handwritten()
    named = dict(zip(HANDWRITTEN_VIEWS, views, strict=True))
    shown = apply_mask(named, paper_mask(len(digits), len(views), 0.5, 4, random_state=0))
    model = URRL(10, effort="quick", random_state=0).fit(shown)
    print(f"accuracy {clustering_accuracy(digits, model.labels_):.3f}")
    figure, axes = pyplot.subplots(figsize=(9, 4.6), layout="constrained")
    model.plot_map(ax=axes).set_title(
        "2,000 handwritten digits, found without labels; half of them lack four of six views"
    )
    for side in axes.spines.values():
        side.set_visible(False)
    figure.savefig(Path(__file__).parents[1] / "images" / "map.png", dpi=110)


if __name__ == "__main__":
    main()
