"""Recommender: Bayesian matrix factorization of ratings, its chain, and its answers."""
