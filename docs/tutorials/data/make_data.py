"""Write the tables of the first tutorial: made-up patients of three kinds, two measurements, some of them missing.

Run `python docs/tutorials/data/make_data.py`; the files are the same every time.
"""

from pathlib import Path

import numpy as np
import pandas as pd

HERE = Path(__file__).parent
KINDS = np.array(["mild", "acute", "chronic"])
GENES, PROTEINS = [f"gene{i}" for i in range(1, 11)], [f"protein{i}" for i in range(1, 7)]


def main() -> None:
    """Ninety patients to learn from, and four new ones."""
    rng = np.random.default_rng(7)
    kind = np.sort(rng.integers(3, size=94))
    rng.shuffle(kind)
    rna = 5 + 2 * rng.normal(size=(3, len(GENES)))[kind] + rng.normal(size=(94, len(GENES)))
    protein = 100 + 30 * rng.normal(size=(3, len(PROTEINS)))[kind] + 12 * rng.normal(size=(94, len(PROTEINS)))
    ids = pd.Index([f"s{i}" for i in range(1, 95)], name="id")
    tables = {
        "rna": pd.DataFrame(rna.round(2), ids, GENES),
        "protein": pd.DataFrame(protein.round(1), ids, PROTEINS),
    }
    old, new = ids[:90], ids[90:]
    lost = rng.permutation(90)
    tables["rna"].loc[old].drop(index=old[lost[:25]]).to_csv(HERE / "rna.csv")
    tables["protein"].loc[old].drop(index=old[lost[25:50]]).to_csv(HERE / "protein.csv")
    tables["rna"].loc[new].to_csv(HERE / "new_patients.csv")
    pd.DataFrame({"label": KINDS[kind[:60]]}, old[:60]).to_csv(HERE / "known.csv")


if __name__ == "__main__":
    main()
