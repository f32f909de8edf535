"""Methods side by side on one set of samples: `run` fits them, `results` sums up, `ranks` says what is chance."""
