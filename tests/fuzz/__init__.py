"""`make fuzz`: files that were damaged at random are read, and whatever ends a reader is kept."""
