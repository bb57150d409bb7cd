"""Plain machines as a site: one ssh connection to each, with our agent at the far end."""
