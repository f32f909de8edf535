"""What is decided without labels: scores of partitions, the rules that use them, where centres start."""
