"""Models: the table, the names people type, ``config.json`` of Hugging Face, and how weights are stored."""
