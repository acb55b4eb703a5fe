"""Results of the demonstration without its runs."""

from typing import Any

import numpy as np

from sghmc.paper import demo
from sghmc.paper.demo import Gaussian, make_regression

ANSWER: Gaussian = make_regression(2_000, 6, 0.9, seed=0).answer()


def drawn(num_draws: int, *, moved: float = 0.0, wide: float = 1.0, seed: int = 0) -> np.ndarray:
    """Draws (chain, draw, coefficient) from the exact posterior, moved and widened."""
    generator = np.random.default_rng(seed)
    root = np.linalg.cholesky(ANSWER.covariance)
    normals = generator.normal(size=(4, num_draws, len(ANSWER.mean)))
    return ANSWER.mean + moved * ANSWER.sd + wide * normals @ root.T


def demo_result(auto: np.ndarray, hmc: np.ndarray, config: demo.DemoConfig | None = None) -> Any:
    """As `demo.run` would put together what was drawn."""
    auto_found, hmc_found = demo.judged(auto, ANSWER, 12.0), demo.judged(hmc, ANSWER, 13.0)
    return demo.result_of(ANSWER, auto_found, hmc_found, config or demo.DemoConfig())
