"""More rows than fit into one process, more machines than one: work in parts, each of which can be done again."""
