"""What knows nothing of statistics: trees, random numbers, matrices, compiler, processes."""
