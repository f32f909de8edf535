"""Methods side by side on one data set: `run` fits them, `results` sums up; `ranks` is over several data sets."""
