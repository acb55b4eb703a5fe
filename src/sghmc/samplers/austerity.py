"""An accept step that looks at a part of the data: as much as the decision needs."""

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.core.checking import check_count
from sghmc.samplers.subset import estimate
from sghmc.types import Change


class Austerity(eqx.Module):
    """The sequential test that accepts or rejects on a subset: `HMC(…, metropolis=Austerity())`.

        accept iff Σᵢ Δᵢ < c,  Δᵢ what row i adds to U(new) − U(old), c all the rest, log u included
        n ← n + batch_size rows without replacement,  Δ̂ = N mean(Δ),  s² with divisor n − 1
        δ = P(T > |Δ̂ − c| / sd),  T Student's t with n − 1 degrees of freedom,
                                  sd² = N² (s²/n) (1 − n/N)
        until δ < error or n = N: accept iff Δ̂ < c

    | field | symbol | meaning |
    | --- | --- | --- |
    | `error` | ϵ | the chance of a wrong decision that each look may have; 0 looks at all data |
    | `batch_size` | m | rows that each look adds |

    Law: at each look the chance of deciding wrongly is at most `error`, up to the normal law of
    means of m rows, and reached where the sum is all but equal to c; the look at all data is never
    wrong. So a decision that takes J looks at less than all data is wrong with probability at most
    J·error, and a chain's bias goes to 0 with it. `info.data_share` is the share of the data that a
    draw's decision looked at, `info.acceptance` whether it was accepted. With `FullBatch` the
    potentials are known already, and the test is exact.

    On a regression of 10,000 rows (`benchmarks/austerity.py`) error=0.05 looks at 45 % of them, and
    variances are right within the 2 % of Monte Carlo error; error=0.2 looks at 16 %, and they are
    18 % too large; without accept step, 45 %. Terms with heavy tails, a rare row that decides, are
    what breaks it: the first looks miss them.

    Korattikara, Chen & Welling, ICML 2014, Alg. 1 and 2.

    >>> import sghmc
    >>> sghmc.HMC(0.1, num_steps=5, metropolis=sghmc.Austerity(error=0.01)).metropolis.batch_size
    500
    """

    error: float = 0.05
    batch_size: int = 500

    def __check_init__(self):
        if not 0 <= self.error < 0.5:
            raise ValueError(
                f"error must be from 0, which looks at all data, and below 0.5, a coin's, but is "
                f"{self.error!r}."
            )
        check_count(self.batch_size, "batch_size", 10, reason="for a test of normal means")

    def decide(
        self, change: Change, limit: jax.Array, order: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Whether the change is below the limit, and the share of the data that was looked at."""

        def is_decided(now):
            distance = jnp.abs(now.value - limit) / jnp.sqrt(now.variance)
            return tail(distance, now.num_rows - 1) < self.error

        seen = estimate(change, order, self.batch_size, is_decided)
        share = seen.num_rows.astype(limit.dtype) / jnp.maximum(change.num_terms, 1)
        return seen.value < limit, share.astype(limit.dtype)


def tail(t: jax.Array, degrees: jax.Array) -> jax.Array:
    """P(T > t) for t ≥ 0, T Student's t: by Wallace's normal deviate (1959).

    Within 2 % down to 0.001 from 9 degrees of freedom on. The incomplete beta function has lost its
    digits in single precision where there are thousands.
    """
    degrees = degrees.astype(t.dtype)
    deviate = (8 * degrees + 1) / (8 * degrees + 3) * jnp.sqrt(degrees * jnp.log1p(t**2 / degrees))
    return jax.scipy.stats.norm.sf(deviate)
