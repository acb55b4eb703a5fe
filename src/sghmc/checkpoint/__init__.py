"""Stop and resume."""
