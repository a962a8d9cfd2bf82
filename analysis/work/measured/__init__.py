"""Work that was measured: Nsight Compute, sampled GPU metrics, logged counters."""
