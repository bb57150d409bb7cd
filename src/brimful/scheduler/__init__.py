"""DECISIONS: a pure function turns state into a plan; `tick` carries it out through ports."""
