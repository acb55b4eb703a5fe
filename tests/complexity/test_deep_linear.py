"""The exact coefficient, against integrals and against what is known by other means."""

import numpy as np
import pytest

from sghmc.complexity.learning_coefficient import deep_linear_coefficient


@pytest.mark.parametrize(("rows", "columns", "rank"), [(3, 4, 0), (3, 4, 2), (5, 5, 5)])
def test_one_layer_is_regular(rows, columns, rank):
    assert deep_linear_coefficient([rows, columns], rank) == rows * columns / 2


def test_a_bottleneck_at_full_rank_counts_the_matrices_of_that_rank():
    """They are a manifold of dimension r(H₀ + H_L − r), and parameters meet it transversally."""
    assert deep_linear_coefficient([7, 3, 9, 5], 3) == 3 * (7 + 5 - 3) / 2


def test_a_product_of_numbers_has_one_half_at_every_depth():
    for depth in range(1, 6):
        assert deep_linear_coefficient([1] * (depth + 1), 0) == pytest.approx(0.5)


@pytest.mark.parametrize("widths", [[2, 2, 2], [2, 3, 2], [2, 2, 5], [2, 3, 4], [2, 7, 3]])
def test_two_layers_at_zero_against_the_integral(widths):
    """Z(n) = ∫ e^{−½n‖W₂W₁‖²} dN(W₁) dN(W₂) falls like n^{−λ} (log n)^{m−1}.

    W₂ is integrated out: det(1 + nW₁ᵀW₁)^{−H₂/2}; the eigenvalues of W₁ᵀW₁, 2 × 2, have the
    density |x − y| (xy)^{(H₁−3)/2} e^{−(x+y)/2}. Multiplicities are 1 or 2 here.
    """
    _, hidden, outputs = widths
    # In logarithms, on which the density is smooth but on the diagonal.
    u = np.linspace(-90, 6, 2_401)
    x, y = np.exp(u)[:, None], np.exp(u)[None]

    def log_integral(n):
        log = (hidden - 1) / 2 * (u[:, None] + u[None]) - (x + y) / 2
        log -= outputs / 2 * (np.log1p(n * x) + np.log1p(n * y))
        return np.log(np.sum(np.abs(x - y) * np.exp(log)))

    spare = deep_linear_coefficient(widths, 0)
    sizes = np.exp(np.array([50.0, 60.0, 70.0]))
    values = np.array([log_integral(n) for n in sizes])
    slopes = -np.diff(values) / 10
    # With multiplicity 2 slopes are λ − 1/log n: the difference from λ is then known.
    is_right = np.allclose(slopes, spare, atol=2e-3) or np.allclose(
        slopes, spare - np.diff(np.log([50.0, 60.0, 70.0])) / 10, atol=2e-3
    )
    assert is_right, (slopes, spare)


def test_impossible_ranks_are_refused():
    with pytest.raises(ValueError, match="rank must lie between 0 and the widths"):
        deep_linear_coefficient([3, 2, 3], 4)
