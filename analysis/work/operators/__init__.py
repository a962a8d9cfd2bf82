"""The operators of a model: formulas, matrices, and which kernel is which of them."""
