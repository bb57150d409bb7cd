"""Fit as a service: a config, a message or advice, answered in a separate process."""

MOST_CARDS = 8  # per question
