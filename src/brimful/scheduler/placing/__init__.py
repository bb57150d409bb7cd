"""Where a gang could go, and which jobs would have to leave: reads the fleet, decides nothing."""
