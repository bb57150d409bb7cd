"""Cloud providers: offers read from files, and machines made and removed."""
