"""GPUs: the table, the names people type, and the ceilings of each device of a capture."""
