"""Numbers above, between or one after another."""

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.transforms.base import Transform, checked


class Positive(Transform):
    """y = low + eˣ: above `low`, entry by entry.

    >>> from sghmc import transforms
    >>> float(transforms.Positive().inverse(1.0))
    0.0
    """

    low: float = 0.0

    def forward(self, x):
        return self.low + jnp.exp(x)

    def inverse(self, y):
        y = checked(y, lambda y: y > self.low, f"above {self.low:g}")
        return jnp.log(y - self.low)

    def log_jacobian(self, x):
        return jnp.sum(x)


class Interval(Transform):
    """y = low + (high − low)/(1 + e⁻ˣ): between `low` and `high`, entry by entry.

    >>> from sghmc import transforms
    >>> float(transforms.Interval(0, 10).inverse(5.0))
    0.0
    """

    low: float = 0.0
    high: float = 1.0

    def __check_init__(self):
        if not self.low < self.high:
            raise ValueError(
                f"An interval needs low < high, but they are {self.low!r} and {self.high!r}."
            )

    def forward(self, x):
        return self.low + (self.high - self.low) * jax.nn.sigmoid(x)

    def inverse(self, y):
        words = f"between {self.low:g} and {self.high:g}"
        y = checked(y, lambda y: (self.low < y) & (y < self.high), words)
        return jnp.log(y - self.low) - jnp.log(self.high - y)

    def log_jacobian(self, x):
        inside = jax.nn.log_sigmoid(x) + jax.nn.log_sigmoid(-x)
        return jnp.sum(inside + np.log(self.high - self.low))


class Ordered(Transform):
    """y₁ = x₁, yᵢ = yᵢ₋₁ + e^{xᵢ}: rising along the last axis.

    >>> from sghmc import transforms
    >>> transforms.Ordered().forward(jax.numpy.zeros(3)).tolist()
    [0.0, 1.0, 2.0]
    """

    def forward(self, x):
        first, rest = x[..., :1], jnp.exp(x[..., 1:])
        return jnp.cumsum(jnp.concatenate([first, rest], axis=-1), axis=-1)

    def inverse(self, y):
        y = checked(y, lambda y: np.diff(y, axis=-1) > 0, "rising along the last axis")
        return jnp.concatenate([y[..., :1], jnp.log(jnp.diff(y, axis=-1))], axis=-1)

    def log_jacobian(self, x):
        return jnp.sum(x[..., 1:])
