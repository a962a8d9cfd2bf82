"""Tables of ``nsys stats`` and ``nsys recipe``."""
