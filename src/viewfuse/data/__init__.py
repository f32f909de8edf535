"""Tables of samples: alignment by id, checks, scaling; `Views` is what leaves this package.

A value travels one way: it is a cell of what was given (`given`), of a row with an id (`alignment`), a number of a
table (`tables`, `categories`, `digits`), a number of `Views`, filled (`filling`), and scaled (`scaling`).
Nothing here knows of files or of networks.
"""
