"""PyTorch-profiler (Kineto) traces, CUDA and ROCm."""
