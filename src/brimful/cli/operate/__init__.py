"""Start brimful, watch it, rehearse a policy, and manage its data and users."""
