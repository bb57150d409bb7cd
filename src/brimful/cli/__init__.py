"""The command line: shared parts, and four folders of commands by topic."""
