"""The method in plain PyTorch, as one would write it down from the paper: a yardstick of speed and numbers."""
