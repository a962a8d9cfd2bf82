"""Which rows of STEPS count in statistics."""

from __future__ import annotations

import polars as pl

#: Neither cut by the window's edge nor warm-up or graph capture.
USABLE_STEP = ~pl.col("excluded") & ~pl.col("partial")
