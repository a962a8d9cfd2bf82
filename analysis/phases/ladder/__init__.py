"""The phase of each step and kernel, from the strongest evidence that speaks."""
