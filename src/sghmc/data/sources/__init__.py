"""Rows larger than memory."""
