"""A Trace becomes an Analysis. ``pipeline`` is the road; each folder is one stage of it, or what stages share."""
