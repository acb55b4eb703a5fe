"""Ready models: each makes its posterior, its Gibbs updates and its predictions.

`MatrixFactorization` is the class `FactorizationModel`, so that it is not taken for the estimator
`sghmc.estimators.MatrixFactorization`, which runs it.
"""

from sghmc.models.adapters import Adapters, LowRank, merged
from sghmc.models.factorization import FactorizationModel as MatrixFactorization
from sghmc.models.mlp import MLP
from sghmc.models.transformer import Transformer

__all__ = ["MLP", "Adapters", "LowRank", "MatrixFactorization", "Transformer", "merged"]
