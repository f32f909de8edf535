"""What is known of samples besides their views: the classes of some, and their batches."""
