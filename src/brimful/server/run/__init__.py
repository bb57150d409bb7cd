"""`brimful up`: what a server finds on its machine, and its life from start to stop."""
