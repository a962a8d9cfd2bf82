"""A file becomes a Trace."""
