"""A Trace becomes an Analysis."""
