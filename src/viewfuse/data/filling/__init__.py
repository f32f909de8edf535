"""Empty cells of rows that are there: counted, refused where they are too many, and filled.

The way of the data: `empty_cells` counts them and knows the bounds; a `Filler`, fitted on the training samples, fills
them from the nearest rows of the same view (`nearest_rows`) or from medians of columns.
"""
