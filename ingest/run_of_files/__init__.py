"""A run recorded in several files, one per rank, node or worker."""
