"""The steps of one decision, in the order `decide` runs them: each action reads and writes the cycle."""
