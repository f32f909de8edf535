"""URRL-IMVC (KDD '24): configuration, network, losses, augmentation, training and the estimator `URRL`."""
