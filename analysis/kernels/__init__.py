"""Kernel names: one canonical spelling, and what each name says of its kernel."""
