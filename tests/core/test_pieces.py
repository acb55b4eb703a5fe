"""A computation in pieces is the computation, for all lengths, shapes and backends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sghmc.core import runtime


def both(x, y, z):
    return x * y + z, x - 2 * z


def assert_pieces(seen, groups):
    for results, group in zip(seen, groups, strict=True):
        for a, b in zip(results, both(*group), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)


def group(shape):
    x = jnp.arange(float(np.prod(shape))).reshape(shape)
    return x, 1.0 + x[:, :1], jnp.asarray(0.5)


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("shapes", [[(1, 1)], [(1, 3)], [(2, 1)], [(5, 7)], [(1, 1), (3, 4)]])
def test_pieces_are_the_whole(shapes, backend, monkeypatch):
    monkeypatch.setattr(runtime, "_PIECE_ENTRIES", 4)
    monkeypatch.setattr(runtime, "has_accelerator", lambda: backend == "gpu")
    groups = [group(shape) for shape in shapes]
    assert_pieces(jax.jit(lambda groups: runtime.in_pieces(both, groups))(groups), groups)


def test_pieces_of_several_chains(monkeypatch):
    monkeypatch.setattr(runtime, "_PIECE_ENTRIES", 4)
    chains = jax.tree.map(lambda *leaves: jnp.stack(leaves), group((5, 3)), group((5, 3)))
    seen = jax.jit(jax.vmap(lambda *arrays: runtime.in_pieces(both, [arrays])))(*chains)
    assert_pieces(seen, [(*chains[:2], chains[2][:, None, None])])
