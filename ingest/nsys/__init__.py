"""Nsight Systems SQLite exports, every schema from 2020 to 2026.

Written by ``nsys export --type sqlite`` (and ``nsys stats``); NVIDIA documents the tables in the Nsight Systems User
Guide, "SQLite Schema Reference". Tables are lazy (absent when empty), columns come and go with the version, other
tools add their own: everything is selected by name and only kernels or whole-graph launches are required.

Read here: kernels, copies, whole-graph launches, runtime and driver calls, NVTX, GPU metrics, the tables that
describe GPUs, and the allow-listed part of what the capture says of itself. Not read: CPU samples, OS runtime calls,
scheduling, graphics, network metrics.
"""

from .reader import read, sniff

__all__ = ["read", "sniff"]
