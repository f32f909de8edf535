"""A model behind HTTP: bodies become Views, two forked processes ask the model, answers are JSON."""
