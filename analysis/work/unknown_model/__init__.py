"""Bounds on the work of a model that nobody knows, from tiles and grids."""
