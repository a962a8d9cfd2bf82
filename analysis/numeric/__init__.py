"""Arithmetic on whole columns that any stage may use: intervals, grouping, chunks of rows."""
