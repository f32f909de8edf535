"""Which criterion finds the known number of clusters: ours, and others on the same embedding."""
