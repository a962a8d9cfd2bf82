"""An Analysis becomes something a person or a program reads."""
