"""What a capture was read into, kept under its fingerprint."""
