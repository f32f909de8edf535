"""Measurements of the package: the tables of the paper, the decisions, speed beside a plain reference."""

from pathlib import Path

RESULTS = Path(__file__).parents[1] / "results"
"""What was measured; a folder per study."""
