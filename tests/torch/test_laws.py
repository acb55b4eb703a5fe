# ruff: noqa: E402
"""Every PyTorch sampler has the law of its JAX twin, and the judges that say so can fail."""

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
from sghmc.torch import BAOAB, PSGLD, SGHMC, SGLD, SGNHT, GaussianPrior, pieces, priors
from sghmc.torch import sghmc as baoab_file
from sghmc.torch import sghmc as momentum
from sghmc.torch import sghmc as sghmc_file
from sghmc.torch.normals import NormalBlock
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
    with mock.patch.object(pieces, "_MAX_CACHED_NUMBERS", 0):
        judge_noise()


def judge_sgld():
    settings = {"preconditioner": 1.3, "gradient_noise": 2.1, "temperature": 1.7}
    p = laws.dense(1.3, SIZE)
    covariance = step_of(SGLD, 0.15, 2.1, **settings).covariance
    laws.assert_close(covariance, laws.sgld_covariance(PRECISION, 0.15, p, 1.7))


def judge_sgnht():
    """The trajectory of JAX: a thermostat's step is not affine."""
    for thermostat in ("scalar", "diagonal"):
        judge_path(f"sgnht {thermostat}")


def judge_psgld():
    judge_path("psgld")


def wrapped(owner, name, wrap):
    """A fault: `wrap` gets the function `name` of a class or module, and its arguments."""

    def plant(monkeypatch):
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **named: wrap(real, *args, **named))

    return plant


def with_group(owner, name, change):
    """A method that sees a parameter group with other settings."""

    def wrap(real, self, group, *rest):
        return real(self, {**group, **change(group)}, *rest)

    return wrapped(owner, name, wrap)


def injecting(module, change):
    """Noise whose `heat`, `share` and `factor` are changed, given the group's settings."""

    def wrap(real, group, piece, targets, heat, share, factor=1.0):
        given = {"heat": heat, "share": share, "factor": factor}
        real(group, piece, targets, **{**given, **change(group, **given)})

    return wrapped(module, "inject", wrap)


def kicking(change):
    """Kick and drift with some of their factors changed."""
    return wrapped(
        momentum,
        "kick_and_drift",
        lambda real, *tensors, **factors: real(*tensors, **{**factors, **change(factors)}),
    )


def drift_by_old_momenta(real, positions, momenta, grads, **factors):
    before = [each.clone() for each in momenta]
    real(positions, momenta, grads, **{**factors, "drift": 0.0})
    torch._foreach_add_(positions, before, alpha=factors["drift"])


def with_precision(factor):
    def change(group):
        prior = GaussianPrior(0.0)
        prior.precision = factor * group["prior"].precision
        return {"prior": prior}

    return change


def without_num_data(real, self, *rest):
    with mock.patch.object(self, "num_data", 1):
        return real(self, *rest)


def adding(change):
    """A gradient of the potential with another prior or number of rows."""

    def wrap(real, target, piece, prior, factor, num_data):
        prior, num_data = change(prior, num_data)
        return real(target, piece, prior, factor, num_data)

    return wrapped(priors, "add_gradient", wrap)


def scaled_noise(change):
    return wrapped(
        Piece, "add_noise", lambda real, self, targets, scale: real(self, targets, change(scale))
    )


def add_off_center(real, self, targets, scale):
    real(self, targets, scale)
    targets[0].add_(1)


def one_number(real, self):
    return [each.reshape(-1)[0].expand(each.shape) for each in real(self)]


def take_again(real, self, size):
    start = real(self, size)
    self._taken = 0
    return start


def seed_again(real, self):
    self._source.generators[0].manual_seed(1)
    return real(self)


def speed_up_first(real, self, group, piece):
    damping = group["lr"] * group["friction"] / group["mass"]
    torch._foreach_mul_(piece.state["momentum"], float(np.exp(damping)))
    real(self, group, piece)


def slowing(change):
    """A thermostat whose `kept` and `share` are changed."""

    def wrap(real, self, group, piece, kept, share):
        real(self, group, piece, *change(kept, share))

    return wrapped(SGNHT, "_slow", wrap)


def slopes_times(factor_of):
    """The correction of PSGLD, times a factor of the group's temperature."""

    def wrap(real, self, group, piece):
        torch._foreach_mul_(piece.state["turned"], factor_of(group["temperature"]))
        real(self, group, piece)

    return wrapped(PSGLD, "_move", wrap)


def count_of(group):
    return sum(param.numel() for param in group["params"])


SGHMC_FAULTS = {
    "friction squared": injecting(sghmc_file, lambda g, heat, **_: {"heat": heat * g["friction"]}),
    "no mass in the friction": wrapped(
        SGHMC, "_inertia", lambda real, self, group: 1 - group["lr"] * group["friction"]
    ),
    "half the noise": injecting(sghmc_file, lambda g, heat, **_: {"heat": heat / 2}),
    "no temperature": injecting(sghmc_file, lambda g, heat, **_: {"heat": heat / g["temperature"]}),
    "gradient noise not squared": injecting(sghmc_file, lambda g, **_: {"share": g["lr"]}),
    "gradient noise forgotten": injecting(sghmc_file, lambda g, **_: {"share": 0.0}),
    "gradient noise times τ": injecting(
        sghmc_file, lambda g, share, **_: {"share": share * g["temperature"]}
    ),
    "noise that the friction damps": injecting(sghmc_file, lambda g, **_: {"factor": 1.0}),
    "old momentum": wrapped(momentum, "kick_and_drift", drift_by_old_momenta),
    "half a drift": kicking(lambda factors: {"drift": factors["drift"] / 2}),
    "no mass in the drift": kicking(lambda factors: {"drift": 0.25}),
    "N forgotten": kicking(lambda factors: {"force": factors["force"] / NUM_DATA}),
    "N on the prior": kicking(lambda factors: {"pull": factors["pull"] * NUM_DATA}),
    "prior forgotten": kicking(lambda factors: {"pull": 0.0}),
    "prior of the other sign": kicking(lambda factors: {"pull": -factors["pull"]}),
    "noise of a root too many": scaled_noise(lambda scale: scale**0.5),
    "noise not centered": wrapped(Piece, "add_noise", add_off_center),
    "noise forgotten": scaled_noise(lambda scale: 0.0),
}
NOISE_FAULTS = {
    "one number for a whole tensor": wrapped(Piece, "normals", one_number),
    "the same numbers in every step": wrapped(NormalBlock, "take", take_again),
}
NOISE_FAULTS_IN_PIECES = {
    "one number for a whole tensor, in pieces": wrapped(Piece, "normals", one_number),
    "the same numbers in every step, in pieces": wrapped(Piece, "normals", seed_again),
}
BAOAB_FAULTS = {
    "momentum not damped": wrapped(BAOAB, "_heat", speed_up_first),
    "heat of one damping": injecting(
        baoab_file,
        lambda g, **_: {
            "heat": -g["temperature"]
            * g["mass"]
            * float(np.expm1(-g["lr"] * g["friction"] / g["mass"]))
        },
    ),
    "gradient noise not damped": injecting(baoab_file, lambda g, **_: {"share": g["lr"] ** 2}),
    "a whole drift and a half": wrapped(
        BAOAB, "_drift", lambda real, self, group, piece, fraction=1.0: real(self, group, piece)
    ),
}
SGLD_FAULTS = {
    "SGLD forgets N": adding(lambda prior, num_data: (prior, 1)),
    "no preconditioner": with_group(SGLD, "_move", lambda g: {"preconditioner": 1.0}),
    "temperature squared": with_group(
        SGLD, "_move", lambda g: {"temperature": g["temperature"] ** 2}
    ),
    "SGLD forgets gradient noise": with_group(SGLD, "_move", lambda g: {"gradient_noise": 0.0}),
    "SGLD's prior forgotten": adding(lambda prior, num_data: (None, num_data)),
    "SGLD's prior of the other sign": adding(
        lambda prior, num_data: (with_precision(-1)({"prior": prior})["prior"], num_data)
    ),
}
SGNHT_FAULTS = {
    "a thermostat without its mass": with_group(SGNHT, "_follow", lambda g: {"thermostat_mass": 1}),
    "a thermostat that heats": with_group(
        SGNHT, "_follow", lambda g: {"temperature": -g["temperature"]}
    ),
    "a thermostat that forgets masses": with_group(SGNHT, "_follow", lambda g: {"mass": 1.0}),
    "a thermostat of sums": with_group(
        SGNHT, "_follow", lambda g: {"mass": g["mass"] / count_of(g)}
    ),
    "noise that forgets masses": with_group(SGNHT, "_slow", lambda g: {"mass": 1.0}),
    "noise of the whole friction": slowing(lambda kept, share: (kept, [1 + s for s in share])),
    "no kick": with_group(SGNHT, "_kick", lambda g: {"lr": 0.0}),
}
PSGLD_FAULTS = {
    "no correction": slopes_times(lambda tau: 0.0),
    "correction without its temperature": slopes_times(lambda tau: 1 / tau),
    "damping not squared": with_group(PSGLD, "_move", lambda g: {"damping": g["damping"] ** 0.5}),
    "a preconditioner without its root": wrapped(
        torch,
        "_foreach_pow",
        lambda real, tensors, power: real(tensors, -1.0 if power == -0.5 else power),
    ),
    "noise of one ε": scaled_noise(lambda scale: [each * 0.5**0.5 for each in scale]),
    "squares that forget": with_group(PSGLD, "_move", lambda g: {"decay": 1 - g["decay"]}),
    "PSGLD forgets N": wrapped(PSGLD, "_differentiate", without_num_data),
}
FAULTS = {
    name: (judge, plant)
    for judge, faults in (
        (judge_sghmc, SGHMC_FAULTS),
        (judge_noise, NOISE_FAULTS),
        (judge_noise_of_pieces, NOISE_FAULTS_IN_PIECES),
        (judge_baoab, BAOAB_FAULTS),
        (judge_sgld, SGLD_FAULTS),
        (judge_sgnht, SGNHT_FAULTS),
        (judge_psgld, PSGLD_FAULTS),
    )
    for name, plant in faults.items()
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_judge_sees_the_fault(name, monkeypatch):
    """Faults are functions put in the place of those that run: no test looks at their text."""
    judge, plant = FAULTS[name]
    plant(monkeypatch)
    with pytest.raises((AssertionError, np.linalg.LinAlgError)):
        judge()


def test_the_judges_pass_what_is_right():
    judge_sghmc()
    judge_baoab()
    judge_sgld()
    judge_noise()
    judge_noise_of_pieces()
    judge_sgnht()
    judge_psgld()


def test_planting_alone_changes_nothing(monkeypatch):
    """What stands around a fault is no fault: with all changes empty the judges pass."""
    injecting(sghmc_file, lambda g, **_: {})(monkeypatch)
    injecting(baoab_file, lambda g, **_: {})(monkeypatch)
    kicking(lambda factors: {})(monkeypatch)
    scaled_noise(lambda scale: scale)(monkeypatch)
    slowing(lambda kept, share: (kept, share))(monkeypatch)
    slopes_times(lambda tau: 1.0)(monkeypatch)
    for kind, name in ((SGLD, "_move"), (SGNHT, "_follow"), (SGNHT, "_slow"), (SGNHT, "_kick")):
        with_group(kind, name, lambda g: {})(monkeypatch)
    test_the_judges_pass_what_is_right()


@pytest.mark.parametrize("name", TWINS)
def test_the_same_noise_gives_the_trajectory_of_jax(name):
    judge_path(name)
