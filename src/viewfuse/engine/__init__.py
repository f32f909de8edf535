"""Training: stacked replicates, their random numbers, epochs, early stopping, CUDA graphs.

The engine knows a method only through the protocol in `engine.method`.
"""
