"""Jobs that run as their own users (decision 33): who they are, their namespaces, their limits."""
