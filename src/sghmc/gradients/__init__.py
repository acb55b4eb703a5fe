"""Target → oracle: estimates of the gradient, and of their noise."""
