"""Shares that add to 1."""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.transforms.base import Transform, checked


class Simplex(Transform):
    """k positive shares of sum 1, along the last axis, from k − 1 numbers, by breaking a stick.

        yᵢ = zᵢ (1 − y₁ − … − yᵢ₋₁),  zᵢ = 1/(1 + (k − i) e^{−xᵢ}),  and y_k is the rest

    x = 0 is where all shares are equal.

    >>> from sghmc import transforms
    >>> transforms.Simplex().forward(jax.numpy.zeros(3)).round(2).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """

    def _log_parts(self, x):
        """log of how many parts are still to come after each cut, k − 1, …, 1."""
        return jnp.broadcast_to(jnp.log(jnp.arange(x.shape[-1], 0, -1, dtype=x.dtype)), x.shape)

    def _logits(self, x):
        return x - self._log_parts(x)

    def _log_rest(self, logits):
        """log of what is left before each cut."""
        left = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
        return jnp.concatenate([jnp.zeros_like(left[..., :1]), left], axis=-1)

    def forward(self, x):
        logits = self._logits(x)
        log_rest = self._log_rest(logits)
        cut = log_rest[..., :-1] + jax.nn.log_sigmoid(logits)
        return jnp.exp(jnp.concatenate([cut, log_rest[..., -1:]], axis=-1))

    def inverse(self, y):
        def is_simplex(y):
            return np.all(y > 0, axis=-1) & (np.abs(np.sum(y, axis=-1) - 1) < 1e-4)

        y = checked(y, is_simplex, "positive shares that add to 1 along the last axis")
        rest = jnp.flip(jnp.cumsum(jnp.flip(y, -1), axis=-1), -1)[..., 1:]
        logits = jnp.log(y[..., :-1]) - jnp.log(rest)
        return logits + self._log_parts(logits)

    def log_jacobian(self, x):
        logits = self._logits(x)
        slopes = jax.nn.log_sigmoid(logits) + jax.nn.log_sigmoid(-logits)
        return jnp.sum(slopes + self._log_rest(logits)[..., :-1])
