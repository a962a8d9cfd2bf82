"""Which model ran, on how many ranks and in which data types."""
