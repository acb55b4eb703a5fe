"""Sources in compiled programs: known by shapes, found by number, kept by nobody."""

import gc
import weakref

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.posterior.sources import SourceRef, TracedSource


def mapped(path, rows):
    np.save(path, rows)
    return sghmc.data.MemoryMapped(path)


@pytest.fixture
def sources(tmp_path):
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    return [mapped(tmp_path / f"{i}.npy", rows * (i + 1)) for i in range(2)]


def posterior(source):
    return sghmc.Posterior(lambda t, x: -jnp.sum((x - t) ** 2), lambda t: -jnp.sum(t**2), source)


def test_one_program_serves_sources_of_equal_shapes(sources):
    traces = []

    @eqx.filter_jit
    def potential(target):
        traces.append(target.source)
        return target.potential(jnp.zeros(2))

    refs = [SourceRef(source) for source in sources]
    targets = [posterior(source) for source in sources]
    one = eqx.tree_at(lambda p: p.data, targets[0], refs[1])  # the same functions, other rows
    found = [float(potential(target)) for target in (targets[0], one)]
    assert found == [506.0, 4 * 506.0]
    assert len(traces) == 1
    assert isinstance(traces[0], TracedSource)
    assert traces[0].num_rows == 6


@pytest.mark.slow
def test_a_source_goes_with_its_posterior(sources):
    seen = weakref.ref(sources[0])
    target = posterior(sources.pop(0))
    eqx.filter_jit(lambda t: t.potential(jnp.zeros(2)))(target)
    gc.collect()
    assert seen() is target.source is not None
    del target
    gc.collect()
    assert seen() is None


def test_the_data_of_a_posterior_make_another(sources):
    target = posterior(sources[0])
    again = posterior(target.data)
    assert again.source is sources[0]
    with pytest.raises(AssertionError, match="only the host"):
        eqx.filter_eval_shape(lambda t: t.source.read(None, None), again)
