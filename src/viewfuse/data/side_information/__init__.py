"""What is known of samples besides their views: the classes of some, pairs, weights, and their batches."""
