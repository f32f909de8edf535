"""One page to open, send and archive: what a run found, made from its folder alone.

`run_folder` reads the folder, `tables` says what is in it, in numbers and words, `sections` and `charts` turn that
into HTML, `payload` packs the samples for the script, and `page` puts it together with the script and the style in
`assets`.
"""
