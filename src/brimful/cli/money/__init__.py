"""What GPU time costs: prices, bids, offers, budgets, bills."""
