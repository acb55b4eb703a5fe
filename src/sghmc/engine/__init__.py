"""The compiled loop, and the host that drives it."""
