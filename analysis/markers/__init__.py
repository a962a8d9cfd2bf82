"""NVTX ranges and profiler annotations: the grammars of engines, and the counts in their texts."""
