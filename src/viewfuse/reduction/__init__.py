"""The front end of a view: what kind it is, and how a wide or sparse one becomes few dense columns.

From outside import `FrontEnd`, `fit_front_end` and `HOW` from `viewfuse.reduction.reduce`; nothing here knows torch.
"""
