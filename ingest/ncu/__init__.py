"""Nsight Compute results: CSV pages and reports."""
