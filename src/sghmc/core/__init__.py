"""Foundations without any statistics: pytrees, random numbers, matrices, XLA, processes, files."""
