"""The headline numbers of a capture, the sentence over them, and how far to trust both."""
