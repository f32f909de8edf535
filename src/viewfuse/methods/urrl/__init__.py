"""URRL-IMVC (KDD '24): configuration, network, what a step learns from, training and the estimator `URRL`."""
