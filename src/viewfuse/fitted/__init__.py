"""A fitted model: placing samples, saving and loading, explaining, thinning.

Nothing here trains: `fitted.prepared` is what a training begins with, `fitted.model.Model` what it ends with.
"""
