"""U(θ): the only home of the sign and of N/n."""
