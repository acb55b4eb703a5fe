# ruff: noqa: E402
"""Every PyTorch sampler has the law of its JAX twin, and the judges that say so can fail."""

import inspect
import textwrap
from unittest import mock

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import laws
import sghmc
from gaussian_settings import (
    DIAGONAL_FRICTION,
    DIAGONAL_MASS,
    DIAGONAL_NOISE,
    PRECISION,
    SIZE,
)
from sghmc import theory
from sghmc.torch import BAOAB, PSGLD, SGHMC, SGLD, SGNHT, GaussianPrior, pieces
from sghmc.torch.blocks import Block
from sghmc.torch.pieces import Piece
from torch_steps import NUM_DATA, real_step
from torch_twins import TWINS, judge_path

MATRICES = {  # friction, mass, gradient noise V̂
    "scalar": (1.3, 0.8, 2.1),
    "by group": (DIAGONAL_FRICTION, DIAGONAL_MASS, DIAGONAL_NOISE),
    "nothing subtracted": (0.7, 1.9, 0.0),
}
PRIORS = (0.3, 0.2, 0.25)
"""Of the precision of a target, so much is its prior's, by group."""
NOISE = laws.positive(7, SIZE, 0.2, 1.1)


def step_of(kind, step_size, actual, **settings):
    """The step of a sampler whose settings come by parameter group, where V is the `actual`."""
    values = {name: np.broadcast_to(value, SIZE) for name, value in settings.items()}

    def make(params):
        groups = [
            {"params": [param], "prior": GaussianPrior(precision)}
            | {name: float(value[i]) for name, value in values.items()}
            for i, (param, precision) in enumerate(zip(params, PRIORS, strict=True))
        ]
        others = {"friction": 0.1} if "friction" in settings else {}
        return kind(groups, step_size, **others, prior=None, num_data=NUM_DATA, seed=0)

    return real_step(make, PRECISION, actual, sizes=[1] * SIZE)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("name", MATRICES)
def test_sghmc_is_the_step_of_the_mathematics_and_of_jax(name, temperature):
    """F and LLᵀ, with V of no relation to V̂."""
    friction, mass, subtracted = MATRICES[name]
    settings = {"friction": friction, "mass": mass, "gradient_noise": subtracted}
    seen = step_of(SGHMC, 0.25, NOISE, **settings, temperature=temperature)
    c, m, v = (laws.dense(value, SIZE) for value in MATRICES[name])
    laws.assert_same_step(seen, laws.sghmc_step(PRECISION, 0.25, c, m, temperature, NOISE, v))
    twin = sghmc.SGHMC(0.25, friction, mass, subtracted, temperature)
    laws.assert_same_step(seen, laws.real_step(twin, PRECISION, NOISE))


@pytest.mark.parametrize("name", MATRICES)
def test_sghmc_law(name):
    """The closed form, where V̂ = V."""
    friction, mass, noise = MATRICES[name]
    settings = {"friction": friction, "mass": mass, "gradient_noise": noise}
    seen = step_of(SGHMC, 0.25, noise, **settings, temperature=1.7)
    c, m = laws.dense(friction, SIZE), laws.dense(mass, SIZE)
    laws.assert_close(seen.covariance, laws.sghmc_covariance(PRECISION, 0.25, c, m, 1.7))
    twin = sghmc.SGHMC(0.25, friction, mass, noise, 1.7)
    law = theory.stationary_law(twin, PRECISION, noise)
    laws.assert_close(seen.covariance, law.state_covariance)


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("name", MATRICES)
def test_baoab_is_the_step_of_the_mathematics_and_of_jax(name, temperature):
    friction, mass, subtracted = MATRICES[name]
    settings = {"friction": friction, "mass": mass, "gradient_noise": subtracted}
    seen = step_of(BAOAB, 0.25, NOISE, **settings, temperature=temperature)
    c, m, v = (laws.dense(value, SIZE) for value in MATRICES[name])
    laws.assert_same_step(
        seen, laws.splitting_step("BAOA", PRECISION, 0.25, c, m, temperature, NOISE, v)
    )
    twin = sghmc.BAOAB(0.25, friction, mass, subtracted, temperature)
    laws.assert_same_step(seen, laws.real_step(twin, PRECISION, NOISE))


def test_baoab_law():
    """No bias at all, at a step size near the limit of stability."""
    seen = step_of(BAOAB, 0.8, 0.0, friction=2.3, mass=0.8, gradient_noise=0.0, temperature=0.6)
    mass = laws.dense(0.8, SIZE)
    laws.assert_close(seen.covariance, laws.baoab_covariance(PRECISION, 0.8, mass, 0.6))


@pytest.mark.parametrize("temperature", [0.6, 1.7])
@pytest.mark.parametrize("name", MATRICES)
def test_sgld_is_the_step_of_the_mathematics_and_of_jax(name, temperature):
    preconditioner, _, subtracted = MATRICES[name]
    settings = {"preconditioner": preconditioner, "gradient_noise": subtracted}
    seen = step_of(SGLD, 0.15, NOISE, **settings, temperature=temperature)
    p, v = laws.dense(preconditioner, SIZE), laws.dense(subtracted, SIZE)
    laws.assert_same_step(seen, laws.sgld_step(PRECISION, 0.15, p, temperature, NOISE, v))
    twin = sghmc.SGLD(0.15, preconditioner, subtracted, temperature)
    laws.assert_same_step(seen, laws.real_step(twin, PRECISION, NOISE))
    matched = step_of(SGLD, 0.15, subtracted, **settings, temperature=temperature)
    laws.assert_close(matched.covariance, laws.sgld_covariance(PRECISION, 0.15, p, temperature))


def bias(kind, step_size, **settings) -> np.ndarray:
    noise, tau = settings["gradient_noise"], settings["temperature"]
    covariance = step_of(kind, step_size, noise, **settings).covariance[:SIZE, :SIZE]
    return covariance - tau * np.linalg.inv(PRECISION)


def test_bias_orders():
    """Half the step, and a quarter of the bias of SGHMC, half of that of SGLD."""
    of_friction = {"friction": 1.3, "mass": 0.8, "gradient_noise": 2.1, "temperature": 1.7}
    of_sgld = {"preconditioner": 1.3, "gradient_noise": 0.7, "temperature": 1.7}
    for kind, settings, order in ((SGHMC, of_friction, 2), (SGLD, of_sgld, 1)):
        whole, half = (np.linalg.norm(bias(kind, step, **settings)) for step in (0.02, 0.01))
        assert np.log2(whole / half) == pytest.approx(order, abs=0.05)


def test_no_temperature_is_gradient_descent_with_momentum():
    theta, other = (torch.ones(3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    sampler = SGHMC.from_learning_rate(
        [theta], 0.01 / 50, 0.1, temperature=0.0, num_data=50, prior=None, seed=0
    )
    descent = torch.optim.SGD([other], lr=0.01, momentum=0.9)
    for _ in range(5):
        for param, optimizer in ((theta, sampler), (other, descent)):
            optimizer.zero_grad()
            (param**4).sum().backward()
            optimizer.step()
    np.testing.assert_allclose(theta.detach(), other.detach(), rtol=1e-12)


def judge_sghmc(friction=1.3, mass=0.8, noise=2.1, temperature=1.7):
    settings = {"friction": friction, "mass": mass, "gradient_noise": noise}
    seen = step_of(SGHMC, 0.25, noise, **settings, temperature=temperature)
    c, m = laws.dense(friction, SIZE), laws.dense(mass, SIZE)
    laws.assert_close(seen.covariance, laws.sghmc_covariance(PRECISION, 0.25, c, m, temperature))


def judge_baoab():
    settings = {"friction": 1.3, "mass": 0.8, "gradient_noise": 1.1, "temperature": 1.7}
    twin = sghmc.BAOAB(0.25, 1.3, 0.8, 1.1, 1.7)
    seen, expected = step_of(BAOAB, 0.25, NOISE, **settings), laws.real_step(twin, PRECISION, NOISE)
    laws.assert_close(seen.covariance, expected.covariance)


def judge_noise():
    """The correlations of 8,000 numbers with their neighbors have errors of 0.011; 5 of them."""
    params = [torch.zeros(30, 100, requires_grad=True), torch.zeros(5000, requires_grad=True)]
    sampler = SGLD(params, 0.5, num_data=1, prior=None, seed=3)
    moves = []
    for _ in range(2):
        before = torch.cat([param.detach().reshape(-1) for param in params])
        for param in params:
            param.grad = torch.zeros_like(param)
        sampler.step()
        after = torch.cat([param.detach().reshape(-1) for param in params])
        moves.append((after - before).double().numpy())
    first, second = moves
    for power, moment, error in ((1, 0, 0.011), (2, 1, 0.016), (4, 3, 0.11)):
        assert abs(np.mean(first**power) - moment) < 5 * error
    for other in (np.roll(first, 1), np.roll(first, 3000), second, np.roll(second, 1)):
        assert abs(np.mean(first * other)) < 5 * 0.011


def judge_noise_of_pieces():
    """As large networks have it."""
    with mock.patch.object(pieces, "_CACHED", 0):
        judge_noise()


def judge_sgld():
    settings = {"preconditioner": 1.3, "gradient_noise": 2.1, "temperature": 1.7}
    p = laws.dense(1.3, SIZE)
    covariance = step_of(SGLD, 0.15, 2.1, **settings).covariance
    laws.assert_close(covariance, laws.sgld_covariance(PRECISION, 0.15, p, 1.7))


def judge_sgnht():
    """The trajectory of JAX: a thermostat's step is not affine."""
    for thermostat in ("scalar", "diagonal"):
        judge_path(f"sgnht {thermostat} symmetric")


def judge_literal_sgnht():
    judge_path("sgnht scalar literal")


def judge_psgld():
    judge_path("psgld")


ADDED = "torch._foreach_add_(targets, drawn, alpha=scale)"
KICKED = ", 1.0)"
"""The end of the call that kicks and drifts."""
FRICTION, TAU, MASS = '* group["friction"]', '* group["temperature"]', ' / group["mass"]'
FAULTS = {  # in which method, what becomes what
    "friction squared": (judge_sghmc, SGHMC._heat, {f"{FRICTION}\n": f"{FRICTION}**2\n"}),
    "no mass in the friction": (judge_sghmc, SGHMC._inertia, {MASS: ""}),
    "half the noise": (judge_sghmc, SGHMC._heat, {"heat = 2 *": "heat ="}),
    "no temperature": (judge_sghmc, SGHMC._heat, {TAU: ""}),
    "gradient noise not squared": (judge_sghmc, SGHMC._heat, {"epsilon**2": "epsilon"}),
    "gradient noise forgotten": (judge_sghmc, SGHMC._heat, {"epsilon**2": "0.0"}),
    "gradient noise times τ": (
        judge_sghmc,
        SGHMC._heat,
        {"epsilon**2": 'epsilon**2 * group["temperature"]'},
    ),
    "old momentum": (
        judge_sghmc,
        SGHMC._finish,
        {"self._kick": "self._drift(group, piece); self._kick", KICKED: ", 0.0)"},
    ),
    "half a drift": (judge_sghmc, SGHMC._finish, {KICKED: ", 0.5)"}),
    "no mass in the drift": (judge_sghmc, SGHMC._kick_and_drift, {MASS: ""}),
    "noise that the friction damps": (judge_sghmc, SGHMC._heat, {", 1 / (inertia or 1.0)": ""}),
    "N forgotten": (judge_sghmc, SGHMC._kick_and_drift, {" * self.num_data": ""}),
    "N on the prior": (
        judge_sghmc,
        SGHMC._kick_and_drift,
        {"prior.precision": "prior.precision * 7"},
    ),
    "prior forgotten": (judge_sghmc, SGHMC._kick_and_drift, {"if is_gaussian": "if False"}),
    "prior of the other sign": (
        judge_sghmc,
        SGHMC._kick_and_drift,
        {"-epsilon * prior": "epsilon * prior"},
    ),
    "SGLD forgets N": (judge_sgld, SGLD._add_gradient, {"factor * self.num_data": "factor"}),
    "SGLD's prior forgotten": (
        judge_sgld,
        SGLD._add_gradient,
        {"and prior.precision": "and False"},
    ),
    "SGLD's prior of the other sign": (
        judge_sgld,
        SGLD._add_gradient,
        {"factor * prior": "-factor * prior"},
    ),
    "noise of a root too many": (judge_sghmc, Piece.add_noise, {"alpha=scale": "alpha=scale**0.5"}),
    "noise not centered": (judge_sghmc, Piece.add_noise, {ADDED: f"{ADDED}; targets[0].add_(1)"}),
    "one number for a whole tensor": (
        judge_noise,
        Piece.normals,
        {"self._source.numbers)": "self._source.numbers[:1].expand(1 << 21))"},
    ),
    "the same numbers in every step": (
        judge_noise,
        Block.take,
        {"self._taken += size": "self._taken = size"},
    ),
    "one number for a whole tensor, in pieces": (
        judge_noise_of_pieces,
        Piece.normals,
        {"return self._drawn": "self._noise.fill_(self._noise[0].item()); return self._drawn"},
    ),
    "the same numbers in every step, in pieces": (
        judge_noise_of_pieces,
        Piece.normals,
        {"self._noise.normal_": "self._source.generators[0].manual_seed(1); self._noise.normal_"},
    ),
    "noise forgotten": (judge_sghmc, Piece.add_noise, {ADDED: "pass"}),
    "momentum not damped": (
        judge_baoab,
        BAOAB._heat,
        {"momenta, math.exp(-damping)": "momenta, 1.0"},
    ),
    "heat of one damping": (judge_baoab, BAOAB._heat, {"expm1(-2 *": "expm1(-1 *"}),
    "a whole drift and a half": (judge_baoab, BAOAB._finish, {"piece, 0.5)": "piece)"}),
    "gradient noise not damped": (judge_baoab, BAOAB._heat, {" * math.exp(-damping))": ")"}),
    "no preconditioner": (judge_sgld, SGLD._move, {' * group["preconditioner"]': ""}),
    "temperature squared": (judge_sgld, SGLD._move, {TAU: f"{TAU}**2"}),
    "SGLD forgets gradient noise": (judge_sgld, SGLD._move, {"step**2": "0.0"}),
    "a thermostat without its mass": (
        judge_sgnht,
        SGNHT._follow,
        {' / group["thermostat_mass"]': ""},
    ),
    "a thermostat that heats": (judge_sgnht, SGNHT._follow, {"cooling = -rate": "cooling = rate"}),
    "a thermostat that forgets masses": (
        judge_sgnht,
        SGNHT._follow,
        {'(count * group["mass"])': "count"},
    ),
    "a thermostat of sums": (judge_sgnht, SGNHT._follow, {"(count * ": "("}),
    "noise that forgets masses": (judge_sgnht, SGNHT._slow, {' * group["mass"]': ""}),
    "noise of the whole friction": (
        judge_sgnht,
        SGNHT._damp,
        {"share.append(": "share.append(1 + "},
    ),
    "no kick": (judge_sgnht, SGNHT._kick, {'-group["lr"]': "0.0"}),
    "literal friction of the other sign": (judge_literal_sgnht, SGNHT._rub, {"1 - ": "1 + "}),
    "no correction": (judge_psgld, PSGLD._move, {"-epsilon * tau / 2": "0.0"}),
    "correction without its temperature": (
        judge_psgld,
        PSGLD._move,
        {"epsilon * tau / 2": "epsilon / 2"},
    ),
    "damping not squared": (judge_psgld, PSGLD._move, {'["damping"] ** 2': '["damping"]'}),
    "a preconditioner without its root": (
        judge_psgld,
        PSGLD._move,
        {"(root, -0.5)": "(root, -1.0)"},
    ),
    "noise of one ε": (judge_psgld, PSGLD._move, {"2 * epsilon * tau": "epsilon * tau"}),
    "squares that forget": (judge_psgld, PSGLD._move, {"seen, forgotten)": "seen, 1 - forgotten)"}),
    "PSGLD forgets N": (judge_psgld, PSGLD._differentiate, {"self.num_data * loss": "loss"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_judge_sees_the_fault(name, monkeypatch):
    judge, method, changes = FAULTS[name]
    plant(monkeypatch, method, changes)
    with pytest.raises((AssertionError, np.linalg.LinAlgError)):
        judge()


def test_the_judges_pass_what_is_right():
    judge_sghmc()
    judge_baoab()
    judge_sgld()
    judge_noise()
    judge_noise_of_pieces()
    judge_sgnht()
    judge_literal_sgnht()
    judge_psgld()


def plant(monkeypatch, method, changes: dict[str, str]) -> None:
    """Put a method with another text in the place of the one that runs."""
    source = textwrap.dedent(inspect.getsource(method))
    for old, new in changes.items():
        assert old in source
        source = source.replace(old, new, 1)
    module = inspect.getmodule(method)
    assert module is not None
    names: dict = {}
    exec(compile(source, "planted", "exec"), module.__dict__, names)
    kind = module.__dict__[method.__qualname__.partition(".")[0]]
    monkeypatch.setattr(kind, method.__name__, names[method.__name__])


@pytest.mark.parametrize("name", TWINS)
def test_the_same_noise_gives_the_trajectory_of_jax(name):
    judge_path(name)
