"""Budgets and costs: counted, equal in every call, whatever the clock says."""

import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.gradients import FullBatch
from sghmc.tuning import budget as budget_module
from sghmc.tuning.budget import Budget, BudgetError, Costs, ModeAllowance


def posterior(count):
    return sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        np.zeros((count, 3), np.float32),
    )


def test_costs_grow_with_rows_and_not_with_the_clock(monkeypatch):
    like = jnp.zeros(3)
    small, large = (Costs.count(posterior(count), like) for count in (1_000, 100_000))
    assert large.of_row == small.of_row > 0
    assert large.of_pass == pytest.approx(100 * small.of_pass, rel=0.05)
    monkeypatch.setattr(budget_module.time, "perf_counter", lambda: 1e9)
    assert Costs.count(posterior(1_000), like) == small
    potential = Costs.count(sghmc.Potential(lambda theta: jnp.sum(theta**2)), like)
    assert potential.of_row == 0 < potential.of_pass


def test_an_accelerator_has_cheap_operations_and_dear_launches(monkeypatch):
    on_cpu = Costs.count(posterior(1_000), jnp.zeros(3), num_chains=4)
    monkeypatch.setattr(budget_module.runtime, "has_accelerator", lambda: True)
    found = Costs.count(posterior(1_000), jnp.zeros(3), num_chains=4)
    assert found.of_row < on_cpu.of_row / 10
    assert found.of_step == pytest.approx(4e-5 / 4)


def test_steps_cost_what_their_gradients_do():
    costs = Costs(of_pass=1.0, of_row=1e-3, of_step=0.0)
    assert costs.of_steps(sghmc.SGHMC(0.1, 1.0), FullBatch(), 5) == 5 * 1.0
    assert costs.of_steps(sghmc.HMC(0.1, 3), FullBatch(), 5) == 5 * 4 * 1.0
    # Twice for the center, twice for the gathering of rows.
    found = costs.of_steps(sghmc.SGHMC(0.1, 1.0), sghmc.Minibatch(10), 5)
    assert found == pytest.approx(5 * 4 * 10 * 1e-3)


def test_without_seconds_what_is_counted_decides(monkeypatch):
    budget = Budget()
    monkeypatch.setattr(budget_module.time, "perf_counter", lambda: 1e12)
    budget.check()
    budget.spend(119.0)
    budget.check()
    budget.spend(2.0)
    with pytest.raises(BudgetError, match=r"counted work of 120 s.*seconds=480"):
        budget.check()


def test_a_mode_search_has_a_fifth_of_the_gradients():
    allowance = ModeAllowance(Budget(), Costs(of_pass=1e-6), num_gradients=4, num_draws=4_000)
    assert allowance.num_allowed == (800 + 4_000) * 4 / 5
    allowance.spend(3_839)
    assert allowance.goes_on()
    allowance.spend(1)
    assert not allowance.goes_on()
    assert allowance.budget.counted == pytest.approx(3_840 * 4e-6)


def test_a_search_that_finds_no_mode_ends_at_its_share(monkeypatch):
    """A funnel of 12 parameters has no mode: the search ends where it may go no further."""
    monkeypatch.setattr(budget_module, "_MODE_SHARE", 1e-3)
    spent = []
    spend = ModeAllowance.spend

    def note(self, count):
        assert self.goes_on() or len(spent) < 100
        spent.append(count)
        spend(self, count)

    monkeypatch.setattr(ModeAllowance, "spend", note)
    from sghmc.posterior.host_potential import HostPotential
    from sghmc.posterior.mode import mode_of

    allowance = ModeAllowance(Budget(), Costs(), 4, 4_000)

    def banana(theta):
        return 100 * jnp.sum((theta[1:] - theta[:-1] ** 2) ** 2) + jnp.sum((1 - theta) ** 2)

    surface = HostPotential(sghmc.Potential(banana), jnp.zeros(6), check=allowance.spend)
    end = mode_of(surface, np.full(6, -1.2), allowance.goes_on)
    assert not end.is_found
    free = mode_of(HostPotential(sghmc.Potential(banana), jnp.zeros(6)), np.full(6, -1.2))
    assert free.is_found


@pytest.mark.parametrize("speed", [1e-3, 1e3])
def test_the_same_engine_and_settings_whatever_the_clock_says(monkeypatch, speed):
    """Time itself runs a thousand times slower or faster: the choice is the same."""
    real = budget_module.time.perf_counter
    monkeypatch.setattr(budget_module.time, "perf_counter", lambda: speed * real())
    monkeypatch.setattr(budget_module, "DEFAULT_COUNTED_SECONDS", 1e6)
    costs = Costs.count(posterior(125_000), jnp.zeros(3), 4)
    from sghmc.tuning.choices import choose_engine
    from sghmc.tuning.whitening import Whitening

    whitening = Whitening(jnp.zeros(3), np.zeros(3), np.eye(3), 0.0, True)
    found = choose_engine(
        "auto", posterior(125_000), whitening, costs, batch_size=500, num_draws=4_000, gibbs=None
    )
    assert found.engine == "exact"
