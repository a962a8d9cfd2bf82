"""The commands behind ``cli.py``: what each reads, runs, prints and writes."""
