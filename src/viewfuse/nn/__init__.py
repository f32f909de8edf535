"""Layers with one set of weights or one per replicate, attention, optimizers, and CUDA streams."""
