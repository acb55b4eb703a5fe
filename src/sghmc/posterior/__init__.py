"""Targets U(θ), with the only place where the sign and N/n appear."""
