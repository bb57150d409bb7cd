"""Budgets that pay for leases, and the price history of pools."""
