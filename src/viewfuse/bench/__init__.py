"""Measurements of the package against a plain reference that does the same work."""
