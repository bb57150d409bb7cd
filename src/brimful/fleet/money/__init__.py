"""Budgets that pay for leases, and the prices that pools had."""
