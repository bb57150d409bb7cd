"""REHEARSAL: other ports for the same `tick`, on a virtual clock."""
