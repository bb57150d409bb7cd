"""One file per kind of usage records; `read.py` detects the kind."""
