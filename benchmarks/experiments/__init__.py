"""Experiments: plans of runs, the data sets, the runs on disk, their tables and figures."""
