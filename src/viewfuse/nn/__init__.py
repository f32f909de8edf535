"""Layers with one set of weights or one per replicate, attention, optimizers, backward passes, and CUDA streams."""
