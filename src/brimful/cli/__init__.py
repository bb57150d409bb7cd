"""The command line: one file per command, one frame around them."""
