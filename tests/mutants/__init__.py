"""Deliberate defects that the tests must notice: `make mutants`."""
