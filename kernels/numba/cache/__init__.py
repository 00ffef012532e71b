"""Keep compiled loops on disk: keys, files, checksums, object code."""
