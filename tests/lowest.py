"""Print the lowest versions that pyproject.toml allows, one per line: `make test-lowest` installs and tests them.

torch is left out: `make` installs the one of requirements.lock, which is the only build that all machines here have.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
bounds = dict(re.findall(r"^([\w-]+)>=([\w.]+)", "\n".join(wanted), re.M))
print("\n".join(f"{name}=={bound}" for name, bound in sorted(bounds.items()) if name != "torch"))
