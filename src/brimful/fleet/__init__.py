"""STATE: jobs, nodes, leases, and the events that fold into them."""
