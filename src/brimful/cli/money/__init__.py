"""What GPU time costs: prices, books of bids, offers, budgets, bills."""
