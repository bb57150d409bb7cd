"""Fit for whoever asks the server: a config, a message or an advice, answered in a process beside it."""

MOST_CARDS = 8  # of one question
