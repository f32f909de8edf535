"""One page to open, send and archive: what a run found, made from its folder alone.

`run_folder` reads the folder, `tables` says what is in it, in numbers and words, `sections` and `charts` fill the
templates in `assets` with that, and `page` puts it together with the samples, the script and the style.
"""
