"""A model behind HTTP: bodies become Views, one thread asks the model, answers are JSON."""
