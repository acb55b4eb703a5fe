"""Low-rank adapters (LoRA): trainable changes of a fixed network's linear layers."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.core.checks import check_count
from sghmc.posterior.gibbs import scaled_log_density
from sghmc.types import PyTree


class LowRank(eqx.Module):
    """A linear layer with a low-rank change of its weight: y = Wx + b + B(Ax).

    | field | symbol | shape |
    | --- | --- | --- |
    | `base` | W, b | as equinox has them |
    | `down` | A | (rank, inputs) |
    | `up` | B | (outputs, rank) |

    BA is never formed: if chains share W and have their own A and B, Wx is one product over the
    inputs of all chains. Layers that are stacked for a scan have the leading axis of W.
    """

    # Any pytrees, not only arrays: filters and masses have this structure, too.
    base: PyTree
    down: PyTree
    up: PyTree

    def __call__(self, x: jax.Array, *, key: jax.Array | None = None) -> jax.Array:
        change = self.up.astype(x.dtype) @ (self.down.astype(x.dtype) @ x)
        return self.base(x, key=key) + change

    def merged(self) -> eqx.nn.Linear:
        """Return one layer with the weight W + BA."""
        weight = self.base.weight
        change = jnp.matmul(self.up, self.down).astype(weight.dtype)
        return eqx.tree_at(lambda layer: layer.weight, self.base, weight + change)


class Adapters(eqx.Module):
    """Low-rank adapters (LoRA): the linear layers of a network change by matrices of small rank.

        y = Wx + b + B(Ax),  A ~ N(0, 1/inputs), B ~ N(0, s²/rank)

    | field | symbol | meaning |
    | --- | --- | --- |
    | `rank` | | rows of A, columns of B |
    | `scale` | s | a priori an output changes by s times the size of its inputs |
    | `where` | | function of a layer's name, "blocks.attend" say; default: every `eqx.nn.Linear` |

    `insert` returns the network with adapters and a filter for `sample(…, trainable=…)`: the
    network is stored once for all chains, and draws contain adapters only. They start from B = 0,
    so that the network computes what it did before. Hu et al., ICLR 2022.

    >>> import equinox as eqx, jax, jax.numpy as jnp
    >>> network = eqx.nn.MLP(2, 1, width_size=8, depth=1, key=jax.random.key(0))
    >>> adapted, trainable = Adapters(rank=2).insert(jax.random.key(1), network)
    >>> moving = eqx.filter(adapted, trainable)
    >>> [leaf.shape for leaf in jax.tree.leaves(moving)]
    [(2, 2), (8, 2), (2, 8), (1, 2)]
    """

    rank: int
    scale: float = 1.0
    where: Callable[[str], bool] | None = None

    def __check_init__(self):
        check_count(self.rank, "rank")
        if not self.scale > 0:
            raise ValueError(f"scale must be positive, but is {self.scale!r}.")

    def insert(self, key: jax.Array, network: PyTree) -> tuple[PyTree, PyTree]:
        """Return the network with adapters, and the filter that selects them."""
        names = [
            jax.tree_util.keystr(path, simple=True, separator=".")
            for path, layer in jax.tree.leaves_with_path(network, is_leaf=_is_linear)
            if _is_linear(layer)
        ]
        chosen = {name for name in names if self.where is None or self.where(name)}
        if not chosen:
            raise ValueError(
                f"where selects no linear layer of the network, so nothing would be trainable: its "
                f"eqx.nn.Linear layers are {names or 'none'}."
            )
        keys = dict(zip(sorted(chosen), jax.random.split(key, len(chosen)), strict=True))

        def adapted(path, layer):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            return self._beside(keys[name], layer) if name in chosen else layer

        network = jax.tree.map_with_path(adapted, network, is_leaf=_is_linear)
        return network, _filter(network)

    def precisions(self, network: PyTree) -> PyTree:
        """Return the prior precisions of the trainable leaves, which also serve as a mass."""

        def of(part: PyTree) -> PyTree:
            if not _is_adapted(part):
                return None
            frozen = jax.tree.map(lambda _: None, part.base)
            return LowRank(frozen, float(part.down.shape[-1]), self.rank / self.scale**2)

        return jax.tree.map(of, network, is_leaf=_is_adapted)

    def log_prior(self, network: PyTree) -> jax.Array:
        """Return log p(A, B), up to a constant; frozen parameters do not enter."""
        return scaled_log_density(eqx.filter(network, _filter(network)), self.precisions(network))

    def _beside(self, key: jax.Array, layer: eqx.nn.Linear) -> LowRank:
        *stack, outputs, inputs = layer.weight.shape
        down = inputs**-0.5 * jax.random.normal(key, (*stack, self.rank, inputs))
        return LowRank(layer, down, jnp.zeros((*stack, outputs, self.rank)))


def merged(network: PyTree) -> PyTree:
    """Return a network whose weights include the adapters: W + BA in place of W."""
    return jax.tree.map(
        lambda part: part.merged() if _is_adapted(part) else part, network, is_leaf=_is_adapted
    )


def _filter(network: PyTree) -> PyTree:
    return jax.tree.map(
        lambda part: LowRank(False, True, True) if _is_adapted(part) else False,
        network,
        is_leaf=_is_adapted,
    )


def _is_linear(part) -> bool:
    is_layer = isinstance(part, eqx.nn.Linear)
    return is_layer and "scalar" not in (part.in_features, part.out_features)


def _is_adapted(part) -> bool:
    return isinstance(part, LowRank)
