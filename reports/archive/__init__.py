"""Archives: every capture below some paths becomes a row, a report and a line of an index page.

One worker process a capture, so that a bad file costs one row; every finished row is kept at once, so that an
interrupted batch resumes; the outputs are the same whatever the number of workers.
"""

from __future__ import annotations

from .batch import BatchRequest, run_batch

__all__ = ["BatchRequest", "run_batch"]
