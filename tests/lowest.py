"""Print the lowest versions that pyproject.toml allows, one per line: `make test-lowest` installs and tests them.

torch is left out: `make` installs the one of requirements.lock before, so its lower bound is not tested. What only the
tests need is that of requirements.lock.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = {name: extra for name, extra in project["optional-dependencies"].items() if name != "docs"}  # builds the site
wanted = [*project["dependencies"], *(one for extra in extras.values() for one in extra)]
bounds = dict(re.findall(r"^([\w-]+)>=([\w.]+)", "\n".join(wanted), re.M))
tools = ("hypothesis", "pandas", "polars", "pytest-timeout", "pytest-xdist")
lock = (Path(__file__).parents[1] / "requirements.lock").read_text()
print("\n".join(f"{name}=={version}" for name, version in re.findall(r"^([\w-]+)==(\S+)", lock, re.M) if name in tools))
print("pytest<9.1")  # newer ones warn of what scikit-learn 1.6 gives them, and warnings are errors in the tests
print("pyparsing<3.3")  # newer ones warn of matplotlib 3.8
print("\n".join(f"{name}=={bound}" for name, bound in sorted(bounds.items()) if name != "torch"))
