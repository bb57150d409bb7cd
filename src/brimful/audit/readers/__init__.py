"""One file for each kind of books; `read.py` tells them apart."""
