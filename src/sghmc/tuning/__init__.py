"""Automatic choice of sampler, settings and starts: `tune` and `tune_network`."""
