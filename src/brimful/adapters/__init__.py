"""THE WORLD: engines, stores and the clock, behind the scheduler's ports."""
