"""Settings without hand work."""
