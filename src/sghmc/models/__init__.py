"""Ready models: each makes its posterior, its Gibbs updates and its predictions."""

from sghmc.models.factorization import MatrixFactorization
from sghmc.models.mlp import MLP

__all__ = ["MLP", "MatrixFactorization"]
