"""Tables of any columns: what the command line fits."""
