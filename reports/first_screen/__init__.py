"""What the first screen says, once: lines, the six numbers, the top kernels.

The terminal, Markdown, notebooks and the page lay these out; none of them makes a text or a number of its own.
"""
