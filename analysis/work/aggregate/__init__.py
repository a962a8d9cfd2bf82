"""Sums of kernel work into tables, steps and ratios against the ceilings."""
