"""Methods by others, one file each, that reads like the method section of its paper."""
