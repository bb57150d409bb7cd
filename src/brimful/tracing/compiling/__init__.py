"""torch.compile, planned without a GPU."""
