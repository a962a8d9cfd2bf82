"""The version of the tool, in a file that everyone may import."""

__version__ = "0.1.0"
