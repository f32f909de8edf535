"""A fitted model: placing samples, saving and loading, explaining, thinning.

Nothing here trains; `fitted.model.Model` is what a training ends with.
"""
