"""Tables of samples: alignment by id, checks, scaling; `Views` is what leaves this package.

Nothing here knows of files or of networks.
"""
