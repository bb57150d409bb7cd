"""Programs that train a config's own model, to be traced."""
