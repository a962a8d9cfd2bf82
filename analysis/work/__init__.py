"""Work: FLOPs and bytes of every kernel and step, and what they say against the ceilings. ``assign_work`` is the way in."""
