"""Layers with one set of weights or one per replicate, attention, and CUDA streams."""
