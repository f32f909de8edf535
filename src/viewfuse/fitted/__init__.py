"""A fitted model: placing samples, saving and loading, explaining, thinning.

Nothing here trains: `fitted.model` has what a training begins with, and the `Model` that it ends with.
"""
