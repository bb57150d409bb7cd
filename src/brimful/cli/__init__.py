"""The command line: one frame, and four folders of commands by what they are about."""
