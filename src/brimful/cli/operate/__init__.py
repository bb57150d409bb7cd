"""Start brimful, watch it, rehearse a policy, look after its data and its users."""
