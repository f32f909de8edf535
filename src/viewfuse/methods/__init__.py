"""Methods of incomplete multi-view clustering, each a package of its own; `ESTIMATORS` names them for saved models."""
