"""The training engine: stages, batches, random numbers, early stopping, checkpoints, progress."""
