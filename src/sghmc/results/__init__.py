"""What a run returns, and whether to trust it."""
