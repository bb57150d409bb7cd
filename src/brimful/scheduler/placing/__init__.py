"""Where a gang could go, and who would have to leave: reads the fleet, decides nothing."""
