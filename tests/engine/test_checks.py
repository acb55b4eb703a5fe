"""What a user gets wrong: one error that names the input, its value and the remedy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import sghmc
from sghmc import SGHMC, SGLD, Minibatch
from sghmc.gradients import Gradient, GradientEstimator, Oracle

QUADRATIC = sghmc.Potential(lambda p: 0.5 * jnp.sum(p**2))
START = jnp.zeros(2)


def log_likelihood(theta, x):
    return -0.5 * jnp.sum((x - theta) ** 2)


def log_prior(theta):
    return -0.5 * jnp.sum(theta**2)


POSTERIOR = sghmc.Posterior(log_likelihood, log_prior, jnp.arange(8.0).reshape(4, 2))
HIERARCHY = sghmc.Posterior(
    lambda theta, x, hyper: hyper * log_likelihood(theta, x),
    lambda theta, hyper: log_prior(theta),
    jnp.arange(8.0).reshape(4, 2),
    hyper=1.0,
)


def sample(target: Any = QUADRATIC, sampler=None, init: Any = START, *, key=None, **settings):
    key = jax.random.key(0) if key is None else key
    sampler = SGHMC(0.1, 1.0) if sampler is None else sampler
    return sghmc.sample(key, target, sampler, init, num_samples=2, progress=False, **settings)


def refuses(error, message, function, *args, **kwargs):
    with pytest.raises(error, match=message) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert len(text) < 500
    assert "\n" not in text
    assert text.endswith(".")


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (np.zeros((0, 3)), ValueError, "data is empty.*length 0.*at least one row"),
        ((), ValueError, "data holds no array.*pytree of arrays"),
        ((np.zeros(3), np.zeros(4)), ValueError, r"leading axes.*\[3, 4\].*share"),
        ((np.zeros(3), 1.0), ValueError, "number without axes.*leading axis"),
        (np.array(["a", "b"]), TypeError, "data must hold numbers.*<U1"),
        (
            np.zeros(3, np.longdouble),
            TypeError,
            "data must hold numbers of at most 64 bits, not fl",
        ),
        (
            np.zeros(3, "m8[s]"),
            TypeError,
            "data must hold numbers of at most 64 bits, not timedelta",
        ),
        (np.array([None, 1]), TypeError, "data must hold numbers.*object"),
    ],
)
def test_data(data, error, message):
    refuses(error, message, sghmc.Posterior, log_likelihood, log_prior, data)


def test_functions_that_are_none():
    refuses(TypeError, "Potential needs a function.*3.0", sghmc.Potential, 3.0)
    refuses(TypeError, "log_prior must be a function", sghmc.Posterior, log_likelihood, 1.0, START)
    refuses(TypeError, r"Gibbs needs a function update\(key", sghmc.Gibbs, 1.0)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            sghmc.Potential(lambda p: p**2),
            r"potential U\(params\) must return one.*\(2,\).*jnp.sum",
        ),
        (
            sghmc.Potential(lambda p: jax.tree.map(jnp.sum, (p, p))),
            r"potential U\(params\) must return one",
        ),
        (sghmc.Potential(jnp.argmax), r"potential U\(params\) must return.*int32"),
        (
            sghmc.Posterior(lambda p, x: -((x - p) ** 2), log_prior, jnp.zeros((4, 2))),
            r"log_likelihood\(params, example\) must return one real number.*\(2,\).*jnp.sum",
        ),
        (
            sghmc.Posterior(log_likelihood, lambda p: -(p**2), jnp.zeros((4, 2))),
            r"log_prior\(params\) must return one real number.*\(2,\)",
        ),
    ],
)
def test_functions_that_return_no_number(target, message):
    refuses(ValueError, message, sample, target)


@pytest.mark.parametrize(
    ("init", "settings", "error", "message"),
    [
        ({"w": jnp.arange(3)}, {}, TypeError, r"init\['w'\] has dtype int32.*float"),
        (1, {}, TypeError, "init has dtype int64.*float"),
        ({}, {}, ValueError, "init holds no parameters.*float arrays"),
        (jnp.array([0.0, jnp.nan]), {}, ValueError, "init is not finite.*finite numbers"),
        (START, {"init_axis": 1}, ValueError, "init_axis must be None or 0, but is 1"),
        (
            {"w": jnp.zeros((3, 2))},
            {"init_axis": 0, "num_chains": 4},
            ValueError,
            r"init\['w'\] has shape \(3, 2\) and num_chains is 4",
        ),
        (
            jnp.zeros(()),
            {"init_axis": 0},
            ValueError,
            r"init_axis=0.*init has shape \(\) and num_chains is 1",
        ),
    ],
)
def test_starts(init, settings, error, message):
    refuses(error, message, sample, init=init, **settings)


@pytest.mark.slow
def test_starts_where_the_potential_is_not_finite():
    logarithm = sghmc.Potential(lambda p: -jnp.sum(jnp.log(p)))
    starts = jnp.array([[1.0], [-1.0], [2.0]])
    message = "not finite where chain 1 starts: the potential is nan. Start elsewhere, or look"
    refuses(ValueError, message, sample, logarithm, init=starts, init_axis=0, num_chains=3)
    holed = sghmc.Posterior(log_likelihood, log_prior, jnp.array([[0.0, jnp.nan]]))
    refuses(ValueError, "not finite where chain 0 starts.*NaN in the data", sample, holed)
    kink = sghmc.Potential(lambda p: jnp.sum(jnp.sqrt(p)))  # finite at 0, but its gradient is not
    refuses(ValueError, "The potential or its gradient is not finite", sample, kink)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (0, r"key must be one typed jax key, such as jax.random.key\(0\), but is 0"),
        (jax.random.PRNGKey(0), r"jax.random.key\(0\).*dtype uint32 and shape \(2,\)"),
        (jax.random.split(jax.random.key(0), 3), r"dtype key<fry> and shape \(3,\)"),
        ("zero", "but is 'zero'"),
    ],
)
def test_keys(key, message):
    refuses(TypeError, message, sample, key=key)


@pytest.mark.parametrize(
    ("name", "value", "lowest"),
    [
        ("num_samples", 0, 1), ("num_samples", -3, 1), ("num_samples", 10.0, 1),
        ("num_burnin", -1, 0), ("thinning", 0, 1), ("num_chains", 0, 1),
    ],
)  # fmt: skip
def test_counts(name, value, lowest):
    settings = {"num_samples": 2, name: value}
    message = f"{name} must be a whole number from {lowest}, but is {value}"
    refuses(
        ValueError, message, sghmc.sample, jax.random.key(0), QUADRATIC, SGHMC(0.1, 1), START,
        **settings,
    )  # fmt: skip


def test_too_many_steps_to_count():
    refuses(ValueError, "at most 2147483646 steps: split it", sample, thinning=2**30)


def test_things_of_the_wrong_kind():
    refuses(TypeError, "sample needs a Posterior or a Potential", sample, log_prior)
    refuses(TypeError, "sample needs a sampler such as", sample, sampler=0.1)
    refuses(TypeError, "gradient must be sghmc.Minibatch.*500", sample, gradient=500)
    refuses(TypeError, "gibbs must be sghmc.Gibbs", sample, HIERARCHY, gibbs=log_prior)
    refuses(TypeError, "averages must be a dict.*sum", sample, averages=[jnp.sum])
    refuses(TypeError, "keep must be a function.*'theta'", sample, keep="theta")
    refuses(TypeError, "checkpoint must be sghmc.Checkpoint.*'run'", sample, checkpoint="run")


@pytest.mark.parametrize("size", [0, -1, 2.5])
def test_batch_sizes(size):
    refuses(ValueError, f"batch_size must be a whole number from 1, but is {size}", Minibatch, size)


@pytest.mark.slow_cases("False", "epochs")
@pytest.mark.parametrize("replacement", [False, "epochs", "palindrome"])
def test_batches_larger_than_the_data(replacement):
    gradient = Minibatch(5, replacement=replacement)
    message = "batch_size is 5, but the data have 4 rows.*at most that many, or replacement=True"
    refuses(ValueError, message, sample, POSTERIOR, gradient=gradient)
    assert sample(POSTERIOR, gradient=Minibatch(5)).positions.shape == (1, 2, 2)


@pytest.mark.parametrize("replacement", ["epoch", 1, None])
def test_unknown_replacement(replacement):
    message = f'replacement must be True, False, "epochs" or "palindrome", but is {replacement!r}'
    refuses(ValueError, message, Minibatch, 2, replacement=replacement)


def test_batches_without_data():
    message = "Minibatch needs data to draw from: give a Posterior, or use FullBatch or Noisy"
    refuses(TypeError, message, sample, gradient=Minibatch(2))


@pytest.mark.parametrize("replacement", ["epochs", "palindrome"])
def test_gradient_noise_with_shuffled_epochs(replacement):
    gradient = Minibatch(2, replacement=replacement)
    for sampler in (SGHMC(0.1, 1.0, gradient_noise=0.1), SGLD(0.1, gradient_noise=0.1)):
        message = "gradient_noise.*shuffled epochs.*replacement=True, or gradient_noise=0"
        refuses(ValueError, message, sample, POSTERIOR, sampler, gradient=gradient)


LIKE = {"a": jnp.zeros(2), "b": jnp.zeros(())}
NOISE = {
    "scalar": 21.0,
    "diagonal": {"a": np.array([1.0, 21.0]), "b": 3.0},
    "dense": 20 * np.eye(3) + np.full((3, 3), 1 / 3),  # largest eigenvalue 21
}
PEAK = optax.join_schedules([lambda t: 0.01, lambda t: 0.1, lambda t: 0.01], [70_000, 70_001])


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("step_size", [0.1, PEAK], ids=["number", "schedule"])
def test_more_gradient_noise_than_friction_and_temperature_allow(kind, step_size):
    noise = NOISE[kind]
    sampler = SGHMC(step_size, 2.0, gradient_noise=noise, temperature=0.5)  # at most 2τC/ε = 20
    message = "gradient_noise is too large.*= 0.105 .*is only 0.1.*Take 1.05 times the friction"
    refuses(ValueError, message, sampler.prepare, LIKE, 100_000)
    SGHMC(step_size, 2.2, gradient_noise=noise, temperature=0.5).prepare(LIKE, 100_000)
    sampler = SGLD(step_size, 2.0, gradient_noise=noise, temperature=2.0)  # at most 2τ/εP = 20
    message = "gradient_noise is too large.*is 4.2, but .*2τ = 4. Take a step_size at most 0.952"
    refuses(ValueError, message, sampler.prepare, LIKE, 100_000)
    SGLD(step_size, 1.9, gradient_noise=noise, temperature=2.0).prepare(LIKE, 100_000)


@pytest.mark.parametrize(("friction", "temperature"), [(1.0, 0.0), (0.0, 1.0)])
def test_gradient_noise_without_friction_or_temperature(friction, temperature):
    sampler = SGHMC(0.1, friction, gradient_noise=1.0, temperature=temperature)
    refuses(ValueError, "nothing can be subtracted: take gradient_noise=0", sampler.prepare, LIKE)


def test_a_momentum_decay_that_diverges_whatever_the_target():
    sampler = SGHMC(0.5, 8.0, mass=2.0)
    refuses(ValueError, "εC/M reaches 2.*smaller step_size or friction", sampler.prepare, LIKE)


@pytest.mark.parametrize("field", ["mass", "friction", "gradient_noise"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.diag([1.0, 1.0, -2.0]), "must be positive (semi-)?definite.*-2"),
        (np.eye(3) + np.eye(3, k=1), "must be symmetric.*up to 1.*A.T"),
        (np.eye(4), r"has shape \(4, 4\), but the parameters have 3 entries.*dense \(3, 3\)"),
        (np.ones(3), r"has shape \(3,\), but the parameters have 3 entries"),
        ({"a": 1.0}, "is a pytree .*one entry.*for each leaf"),
        (
            {"a": np.ones(3), "b": 1.0},
            r"has a leaf of shape \(3,\) where the parameters have \(2,\)",
        ),
        ({"a": np.array([1.0, -1.0]), "b": 1.0}, "must be .*-1"),
    ],
    ids=["indefinite", "asymmetric", "size", "flat", "structure", "leaf", "negative entry"],
)
def test_matrices(field, value, message):
    settings: dict[str, Any] = {"friction": 1.0, "gradient_noise": 0.0} | {field: value}
    refuses(ValueError, rf"\b{field} {message}", SGHMC(0.1, **settings).prepare, LIKE)


@pytest.mark.parametrize("value", [-0.1, np.nan, np.inf])
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("step_size", lambda x: SGHMC(x, 1.0)),
        ("friction", lambda x: SGHMC(0.1, x)),
        ("mass", lambda x: SGHMC(0.1, 1.0, mass=x)),
        ("gradient_noise", lambda x: SGHMC(0.1, 1.0, gradient_noise=x)),
        ("temperature", lambda x: SGHMC(0.1, 1.0, temperature=x)),
        ("learning_rate", lambda x: SGHMC.from_learning_rate(x, 0.1)),
        ("momentum_decay", lambda x: SGHMC.from_learning_rate(0.1, x)),
        ("step_size", SGLD),
        ("preconditioner", lambda x: SGLD(0.1, preconditioner=x)),
        ("temperature", lambda x: SGLD(0.1, temperature=x)),
        ("step_size", lambda x: sghmc.HMC(x, 3)),
        ("mass", lambda x: sghmc.HMC(0.1, 3, mass=x)),
        ("learning_rate", sghmc.SGD),
        ("learning_rate", lambda x: sghmc.Momentum(x, 0.1)),
        ("momentum_decay", lambda x: sghmc.Momentum(0.1, x)),
        ("variance", sghmc.NoisyGradient),
    ],
)
def test_numbers_that_cannot_be(name, make, value):
    shown = r"\[?" + str(value)
    refuses(ValueError, f"^{name} must (be|not be) .*but (is|holds) {shown}", make, value)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("step_size", lambda x: SGHMC(x, 1.0)),
        ("friction", lambda x: SGHMC(0.01, x)),
        ("temperature", lambda x: SGHMC(0.1, 1.0, temperature=x)),
        ("step_size", SGLD),
        ("step_size", lambda x: sghmc.HMC(x, 3)),
        ("learning_rate", sghmc.SGD),
        ("momentum_decay", lambda x: sghmc.Momentum(0.1, x)),
    ],
)
def test_schedules_that_become_negative(name, make):
    falling = make(optax.linear_schedule(0.1, -0.1, 10))
    falling.prepare(LIKE, 4)
    message = f"schedule of {name} must stay finite and not negative, but is -0.02 at step 6"
    refuses(ValueError, message, falling.prepare, LIKE, 10)


def test_settings_of_the_wrong_kind():
    message = "must be a number or a schedule.*not '0.1x'"
    refuses(TypeError, f"step_size {message}", SGHMC, "0.1x", 1.0)
    refuses(TypeError, "mass must be a number, a pytree.*not <function", SGHMC, 0.1, 1.0, log_prior)
    refuses(ValueError, "num_steps must be a whole number from 1, but is 0", sghmc.HMC, 0.1, 0)
    refuses(ValueError, "resample_every must be None or a whole number from 1, but is 2.5",
            SGHMC, 0.1, 1.0, resample_every=2.5)  # fmt: skip
    refuses(ValueError, 'observe must be "end" or "middle", but is \'start\'',
            SGHMC, 0.1, 1.0, observe="start")  # fmt: skip
    vector = SGHMC(lambda t: jnp.ones(3), 1.0)
    refuses(ValueError, r"schedule of step_size must return a number, not.*\(3,\)",
            vector.prepare, LIKE)  # fmt: skip


def test_gibbs_updates_that_do_not_fit():
    update = sghmc.Gibbs(lambda key, params, posterior: posterior.hyper)
    refuses(ValueError, r"the target has none: give Posterior\(…, hyper=…\)", sample, gibbs=update)
    message = r"must return hyper with the structure.*shape=\(\).*but returns.*shape=\(2,\)"
    wide = sghmc.Gibbs(lambda key, params, posterior: jnp.ones(2))
    refuses(ValueError, message, sample, HIERARCHY, gibbs=wide)
    refuses(ValueError, "every must be a whole number from 1, but is 0", sghmc.Gibbs, log_prior, 0)


class StreamedGradient(Gradient):
    """Gradients of a source that only streams by: no pass over all data."""

    def prepare(self, target, position):
        return StreamedEstimator()


class StreamedEstimator(GradientEstimator):
    def oracle(self, target, noise, anchor=()):
        return Oracle(lambda i, position: target.evaluate(position), None, False)


def test_accept_step_without_full_data():
    settings = {"gradient": StreamedGradient(), "num_samples": 2, "progress": False}
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)
    with pytest.raises(ValueError, match=r"accept step needs .* all data.*metropolis=False"):
        sghmc.sample(jax.random.key(0), target, sghmc.HMC(0.1, 3), jnp.zeros(2), **settings)
    sampler = sghmc.HMC(0.1, 3, metropolis=False)
    samples = sghmc.sample(jax.random.key(0), target, sampler, jnp.zeros(2), **settings)
    assert samples.info.is_finite.all()


def test_a_run_is_no_part_of_a_compiled_function():
    target = sghmc.Potential(lambda theta: jnp.sum(theta**2) / 2)

    def run(init):
        return sghmc.sample(jax.random.key(0), target, sghmc.SGLD(0.1), init, progress=False)

    for transform in (jax.jit, jax.vmap):
        with pytest.raises(TypeError, match=r"call it outside, .* sghmc\.Stepper"):
            transform(run)(jnp.zeros((2, 2)))


def test_a_list_that_is_meant_as_a_vector_is_told():
    target = sghmc.Potential(lambda theta: jnp.sum((theta - 1) ** 2))
    with pytest.raises(TypeError, match=r"init is a list of 2 numbers, .* give jnp\.array\(init\)"):
        sghmc.sample(jax.random.key(0), target, sghmc.SGLD(0.1), [0.0, 1.0], progress=False)


def test_whole_numbers_that_jax_cannot_hold_are_refused():
    with pytest.raises(ValueError, match="The data hold 3000000000, which int32 cannot"):
        sghmc.Posterior(lambda t, x: t, lambda t: t, np.array([3_000_000_000]))


def test_arrays_of_another_byte_order_are_numbers():
    rows, start = np.arange(8.0).reshape(4, 2), np.zeros(2, np.float32)
    plain = sample(sghmc.Posterior(log_likelihood, log_prior, rows), init=start)
    turned = sample(
        sghmc.Posterior(log_likelihood, log_prior, rows.astype(">f8")), init=start.astype(">f4")
    )
    np.testing.assert_array_equal(turned.positions, plain.positions)


@pytest.mark.parametrize(
    "returned",
    ["text", np.longdouble(1), object(), jnp.sin, jax.random.key(0), {"a": 1.0, "b": "text"}],
    ids=["text", "float128", "object", "function", "key", "text inside"],
)
def test_what_no_array_can_hold_is_not_kept(returned):
    message = "What {} returns must hold numbers of at most 64 bits, not "
    refuses(TypeError, message.format("keep"), sample, keep=lambda p: returned)
    averages: dict[str, Any] = {"a": lambda p: returned}
    refuses(TypeError, message.format(r"averages\['a'\]"), sample, averages=averages)
    settings: dict[str, Any] = {"averages": {"a": lambda p: p}, "trace": lambda _: returned}
    refuses(TypeError, message.format("trace"), sample, **settings)


def test_a_number_of_python_is_kept_as_an_array():
    found = sample(keep=lambda p: {"one": 1.0, "two": 2}, averages={"three": lambda p: 3.0})
    np.testing.assert_array_equal(found.positions["one"], np.ones((1, 2)))
    np.testing.assert_array_equal(found.positions["two"], np.full((1, 2), 2))
    assert float(found.averages["three"][0]) == 3.0


def test_a_function_that_is_none_and_parameters_without_entries_are_refused():
    refuses(TypeError, "averages must be a dict .name: function.", sample, averages={"a": 3})
    refuses(TypeError, "averages must be a dict .name: function.", sample, averages={3: jnp.sum})
    refuses(ValueError, "init holds no parameters", sample, init=jnp.zeros((0, 3)))
    refuses(TypeError, "init has dtype float128", sample, init=np.zeros(2, np.longdouble))
