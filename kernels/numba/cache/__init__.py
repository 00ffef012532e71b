"""On-disk cache of compiled loops: keys, files, checksums, object code."""
