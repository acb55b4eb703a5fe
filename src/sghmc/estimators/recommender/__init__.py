"""A recommender: matrix factorization of ratings, its chain, and what it answers."""

from sghmc.estimators.recommender.matrix_factorization import MatrixFactorization

__all__ = ["MatrixFactorization"]
