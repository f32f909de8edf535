"""Layers whose weights may have a leading axis for replicates, Adam, and CUDA streams: what makes steps fast."""
