"""Changes of the code that the tests must notice: `make mutants`, `make mutants-random`."""
