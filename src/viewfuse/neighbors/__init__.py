"""Nearest neighbours per view, donors of missing views (Algorithm 1), and the samples with their neighbours."""
