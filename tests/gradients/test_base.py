"""Oracles: what they pass on, in other coordinates, from other batches; what they refuse."""

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.gradients import GradientEstimator, Oracle, RowView
from sghmc.types import Change, Evaluation


def oracle(**others):
    """A quadratic, shifted by the number of the batch."""
    return Oracle(
        lambda i, theta: Evaluation(100 * i + theta**2, 2 * theta),
        lambda theta: theta**3,
        others.pop("is_exact", False),
        lambda old, new: Change(new - 2 * old, lambda rows: rows, 5),
        **others,
    )


def test_an_oracle_answers_by_batch_and_position():
    found = oracle()
    assert found(2, 3.0) == (209.0, 6.0)
    assert found.potential(2.0) == 8.0
    assert found.change(3.0, 7.0).known == 1.0
    assert not found.is_exact
    assert oracle(is_exact=True).is_exact


def test_replicas_count_batches_from_their_first():
    later = oracle(is_exact=True).from_batch(4)
    assert later(2, 3.0) == (609.0, 6.0)
    assert later.potential(2.0) == 8.0
    assert later.change(3.0, 7.0).known == 1.0
    assert later.is_exact


def test_other_coordinates_have_their_own_gradient():
    """θ = 5z: the gradient in z is five times that in θ."""
    view = RowView(lambda i: i, lambda rows, like: (rows, like))  # pyright: ignore
    for keeps_rows in (True, False):
        seen = oracle(is_exact=True, row_view=view).through(
            lambda z: 5 * z, lambda grad: 5 * grad, keeps_rows=keeps_rows
        )
        assert seen(1, 2.0) == (200.0, 100.0)
        assert seen.potential(2.0) == 1000.0
        assert seen.change(3.0, 7.0).known == 35 - 2 * 15
        assert seen.is_exact
        if keeps_rows:
            assert seen.rows is view
    with pytest.raises(TypeError, match="Lazy moves the rows that a batch uses"):
        _ = seen.rows


def test_what_a_source_cannot_answer_is_refused():
    bare = Oracle(lambda i, theta: Evaluation(theta, theta), None, False)
    with pytest.raises(ValueError, match="needs the potential over all data"):
        bare.potential(1.0)
    with pytest.raises(ValueError, match="needs single rows of the data"):
        bare.change(1.0, 2.0)


def test_an_estimator_remembers_and_draws_nothing_unless_it_says_so():
    class Plain(GradientEstimator):
        def oracle(self, target, noise, anchor=()):
            return oracle()

    plain, target = Plain(), sghmc.Potential(jnp.sum)
    assert (plain.renew_every, plain.is_shared, plain.takes_rows) == (None, False, False)
    assert plain.draw(None, 0, 3, 2, None) == []
    assert plain.init_anchor(target) == ()
    assert plain.renew_anchor(target, "anchor") == "anchor"
    assert plain.move_anchor(target, "anchor", "elsewhere") == "anchor"
    assert plain.noise_scale == 0
    with pytest.raises(TypeError, match="Plain takes no batches"):
        plain.examples(target, None)
    with pytest.raises(TypeError, match="Plain takes no batches: its noise"):
        plain.example_gradients(target, None, None, None)


def test_gradients_without_batches_have_no_batch_size_and_independent_errors():
    for gradient in (sghmc.FullBatch(), sghmc.NoisyGradient(2.0)):
        assert gradient.batch_rows is None
        assert gradient.is_independent
    for kind in (sghmc.Minibatch, sghmc.ControlVariate):
        assert kind(17).batch_rows == 17
        for replacement in (True, False):
            assert kind(17, replacement=replacement).is_independent
        for order in ("epochs", "palindrome"):
            assert not kind(17, replacement=order).is_independent
    assert np.all(sghmc.NoisyGradient(2.0).variance == 2.0)
