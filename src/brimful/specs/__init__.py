"""Facts: the frozen dataclasses that all other packages use, and the table of GPUs."""
