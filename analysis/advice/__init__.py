"""What would help: a step-time model of this capture, the workload's class, and the ranked findings."""
