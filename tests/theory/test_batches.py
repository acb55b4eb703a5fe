"""`minibatch_law` against brute force, and what it says of the order of the bias."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from cases import Chain
from sghmc import theory


def some_rows(seed, count):
    """Numbers that single precision has, too: that is what a posterior keeps of them."""
    rows = np.random.default_rng(seed).normal(size=(count, 3)) * np.array([1.0, 1.0, 1.5])
    return rows.astype(np.float32).astype(np.float64)


ROWS = some_rows(0, 4)
INIT = jnp.zeros(2)
RULES = (True, False, "epochs", "palindrome")
FRICTION, MASS = np.array([[1.3, 0.4], [0.4, 2.0]]), np.array([0.8, 1.4])


def posterior(rows=ROWS):
    """A regression: curvature and gradient differ from row to row."""
    return sghmc.Posterior(
        lambda w, row: -0.5 * (row[2] - row[:2] @ w) ** 2, lambda w: -0.5 * jnp.sum(w**2), rows
    )


def exact_covariance(rows=ROWS):
    return np.linalg.inv(rows[:, :2].T @ rows[:, :2] + np.eye(2))


def periods(rule, num_rows, batch_size):
    """The row numbers of a period's steps, from all permutations of rows: no order is left out."""
    permutations = itertools.permutations(range(num_rows))
    if rule is True:
        return [[batch] for batch in itertools.product(range(num_rows), repeat=batch_size)]
    used = num_rows // batch_size * batch_size
    whole = [np.reshape(p[:used], (-1, batch_size)) for p in permutations]
    if rule is False:
        return [p[:1] for p in whole]
    return whole if rule == "epochs" else [np.concatenate([p, p[::-1]]) for p in whole]


def iterated(sampler, rule, batch_size, rows):
    """The moments E (z, 1)(z, 1)ᵀ after many periods, and what the times are made of."""
    target = posterior(rows)
    with jax.enable_x64(True):
        chain = Chain(
            jax.random.key(0), target, sampler, sghmc.Minibatch(batch_size, rule), jnp.zeros(2)
        )
        shape = jax.eval_shape(lambda: chain.noise(0)[0])
        quiet = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in shape]

        def step(z, normals, batch):
            state = type(chain.state)(z[:2], z[2:])
            new, _ = chain.step(0, ([normals], jnp.asarray(batch, jnp.int32)), state)
            return jnp.concatenate(new)

        @jax.jit
        def parts(batch):
            zero = jnp.zeros(4)
            by_state, by_noise = jax.jacfwd(step, (0, 1))(zero, quiet[0], batch)
            return by_state, by_noise, step(zero, quiet[0], batch)

        all_periods = periods(rule, len(rows), batch_size)
        steps = [[jax.tree.map(np.asarray, parts(np.ravel(b))) for b in p] for p in all_periods]
    augmented = [
        [
            (
                np.block([[f, c[:, None]], [np.zeros((1, 4)), np.ones((1, 1))]]),
                np.pad(n @ n.T, (0, 1)),
            )
            for f, n, c in period
        ]
        for period in steps
    ]
    moments = np.zeros((5, 5))
    moments[4, 4] = 1
    for _ in range(400):
        after = []
        for period in augmented:
            own = moments
            for f, q in period:
                own = f @ own @ f.T + q
            after.append(own)
        moments = np.mean(after, 0)
    befores = []
    for period in augmented:
        befores.append([moments])
        for f, q in period:
            befores[-1].append(f @ befores[-1][-1] @ f.T + q)
    means = np.mean([[own[:, 4] for own in before[:-1]] for before in befores], 0)
    return np.mean([before[:-1] for before in befores], (0, 1)), lag_sum(augmented, befores, means)


def lag_sum(augmented, befores, means):
    """Σ_{s≥1} Cov(z_{t+s}, z_t), averaged over t: each lag on its own, through 60 periods."""
    length, total = len(means), np.zeros((5, 5))
    by_period = np.mean([[np.linalg.multi_dot([np.eye(5), *[f for f, _ in p[:j]][::-1], np.eye(5)])
                          for j in range(1, length + 1)] for p in augmented], 0)  # fmt: skip
    for j in range(length):
        ends = []
        for period, before in zip(augmented, befores, strict=True):
            later = before[j]
            for k in range(j, length):
                later = period[k][0] @ later
                mean = means[(k + 1) % length]
                total += (later - np.outer(mean, means[j])) / len(augmented)
            ends.append(later)
        end = np.mean(ends, 0)
        for _ in range(60):
            for k in range(length):
                mean = means[(k + 1) % length]
                total += by_period[k] @ end - np.outer(mean, means[j])
            end = by_period[-1] @ end
    return total / length


def of_one_parameter(maps, heat):
    """Mean, variance and Σ_{s≥1} Cov of θ' = aθ + c + N(0, heat), (a, c) in each order of `maps`.

    Orders of periods are independent, and as likely: all that is needed are their mean maps.
    """
    length, mean, square = len(maps[0]), 0.0, 0.0
    for _ in range(300):  # moments at the start of a period
        ends = []
        for order in maps:
            m, q = mean, square
            for a, c in order:
                m, q = a * m + c, a**2 * q + 2 * a * c * m + c**2 + heat
            ends.append((m, q))
        mean, square = np.mean(ends, 0)
    firsts, seconds = np.zeros((2, len(maps), length))
    slopes, shifts = np.ones((2, len(maps), length + 1))
    shifts[:] = 0
    for i, order in enumerate(maps):
        m, q = mean, square
        for j, (a, c) in enumerate(order):
            firsts[i, j], seconds[i, j] = m, q
            m, q = a * m + c, a**2 * q + 2 * a * c * m + c**2 + heat
            slopes[i, j + 1], shifts[i, j + 1] = a * slopes[i, j], a * shifts[i, j] + c
    means, slope, shift = firsts.mean(0), slopes.mean(0), shifts.mean(0)
    lags = 0.0
    for j in range(length):
        products = seconds[:, j].copy()  # E θ_k θ_j, order by order
        for k in range(j, length):
            a, c = np.array([order[k] for order in maps]).T
            products = a * products + c * firsts[:, j]
            lags += products.mean() - means[(k + 1) % length] * means[j]
        product = products.mean()
        for _ in range(200):
            later = slope * product + shift * means[j]  # at steps 0, …, L of a later period
            lags += sum(later[1:] - np.append(means[1:], means[0]) * means[j])
            product = later[-1]
    return means.mean(), seconds.mean() - means.mean() ** 2, lags / length


@pytest.mark.parametrize("rule", ["epochs", "palindrome"])
def test_law_of_one_parameter_by_arithmetic(rule):
    """SGLD in other coordinates, θ = 0.4 + 0.5 z: its step there is a quarter of ε."""
    rows = np.array([[0.5, 1.0], [2.0, -1.5], [1.2, 0.7]], np.float32)
    target = sghmc.Posterior(
        lambda theta, row: -0.5 * row[0] * (row[1] - theta) ** 2,
        lambda theta: -0.4 * theta**2,
        rows,
    )
    sampler = sghmc.Whitened(sghmc.SGLD(0.24, temperature=0.7), center=0.4, factor=0.5)
    law = theory.minibatch_law(sampler, target, sghmc.Minibatch(1, rule), jnp.zeros(()))
    step, (h, y) = 0.06, rows.astype(float).T
    by_row = list(zip(1 - step * (3 * h + 0.8), step * 3 * h * y, strict=True))
    orders = list(itertools.permutations(by_row))
    if rule == "palindrome":
        orders = [order + order[::-1] for order in orders]
    mean, variance, lags = of_one_parameter(orders, 2 * step * 0.7)
    precision, center = h.sum() + 0.8, h @ y / (h.sum() + 0.8)
    exact = np.sqrt(0.7 / precision)
    np.testing.assert_allclose(law.covariance, variance, rtol=1e-9)
    np.testing.assert_allclose(law.state_covariance, variance, rtol=1e-9)
    np.testing.assert_allclose(law.mean_error, (mean - center) / exact, rtol=1e-6)
    np.testing.assert_allclose(law.autocorrelation_time, 1 + lags / variance, rtol=1e-7)
    np.testing.assert_allclose(law.standard_deviation_error, np.sqrt(variance) / exact - 1)
    assert law.effective_temperature == pytest.approx(precision * variance)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "batch_size", "num_rows"),
    [(True, 1, 4), (False, 2, 4), ("epochs", 1, 3), ("palindrome", 2, 4), ("palindrome", 2, 5)],
)
def test_law_is_that_of_iterated_periods(rule, batch_size, num_rows):
    """Real steps with real batches, an order of rows after the other; a short batch is left out."""
    rows = some_rows(5, num_rows)
    sampler = sghmc.UBU(0.3, 1.3, 0.8, temperature=0.7)
    law = theory.minibatch_law(sampler, posterior(rows), sghmc.Minibatch(batch_size, rule), INIT)
    moments, lags = iterated(sampler, rule, batch_size, rows)
    mean, second = moments[:2, 4], moments[:2, :2]
    np.testing.assert_allclose(law.covariance, second - np.outer(mean, mean), rtol=1e-9)
    time = 1 + lags.diagonal()[:2] / law.covariance.diagonal()
    np.testing.assert_allclose(law.autocorrelation_time, time, rtol=1e-6)
    exact = exact_covariance(rows)
    truth = exact @ rows[:, :2].T @ rows[:, 2]
    error = (mean - truth) / np.sqrt(0.7 * exact.diagonal())
    np.testing.assert_allclose(law.mean_error, error, atol=1e-10)
    np.testing.assert_allclose(
        law.standard_deviation_error,
        np.sqrt(law.covariance.diagonal() / (0.7 * exact.diagonal())) - 1,
        atol=1e-10,
    )


@pytest.mark.slow
def test_without_noise_of_batches_it_is_the_stationary_law():
    """All rows in a batch: the same numbers, times included, by the other route."""
    sampler = sghmc.SGHMC(0.3, FRICTION, MASS, temperature=0.7, observe="middle")
    expected = theory.stationary_law(sampler, np.linalg.inv(exact_covariance()))
    for rule in (False, "epochs", "palindrome"):
        law = theory.minibatch_law(sampler, posterior(), sghmc.Minibatch(4, rule), INIT)
        np.testing.assert_allclose(law.state_covariance, expected.state_covariance, atol=1e-10)
        np.testing.assert_allclose(law.autocorrelation_time, expected.autocorrelation_time)
        np.testing.assert_allclose(law.mean_error, 0, atol=1e-10)


def test_independent_batches_of_equal_curvature_are_known_noise():
    """Rows that differ by a force alone: V of all batches, and the law of that V; times too."""
    values = np.array([-2.0, -0.5, 0.25, 2.25])
    target = sghmc.Posterior(lambda x, y: -0.5 * (y - x) ** 2, lambda x: 0.0, values)
    noise = 4**2 * values.var()
    sampler = sghmc.BAOAB(0.1, 1.3, 0.8, gradient_noise=2.0)
    law = theory.minibatch_law(sampler, target, sghmc.Minibatch(1), jnp.array(0.0))
    expected = theory.stationary_law(sampler, 4.0, noise)
    np.testing.assert_allclose(law.state_covariance, expected.state_covariance, rtol=1e-9)
    np.testing.assert_allclose(law.autocorrelation_time, expected.autocorrelation_time, rtol=1e-9)
    far = sghmc.Posterior(lambda x, y: -0.5 * (y - x) ** 2, lambda x: 0.0, values + 3)
    law = theory.minibatch_law(sampler, far, sghmc.Minibatch(1), jnp.array(0.0))
    np.testing.assert_allclose(law.mean_error, 0, atol=1e-10)  # relative to the mode, 3


def biases(make, rule, steps=(0.01, 0.005)):
    target = posterior()
    laws = [theory.minibatch_law(make(e), target, sghmc.Minibatch(1, rule), INIT) for e in steps]
    return (
        [np.linalg.norm(law.covariance - exact_covariance()) for law in laws],
        [np.linalg.norm(law.mean_error) for law in laws],
    )


def slope(whole, half):
    return np.log2(whole / half)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [sghmc.UBU, sghmc.BAOAB, sghmc.SGHMC])
def test_bias_in_palindromes_is_of_second_order(kind):
    """With one row a step, in covariance and mean; independent rows leave first order."""
    covariance, mean = biases(lambda e: kind(e, FRICTION, MASS), "palindrome")
    assert 1.9 <= slope(*covariance) <= 2.1
    assert 1.9 <= slope(*mean) <= 2.1
    independent, _ = biases(lambda e: kind(e, FRICTION, MASS), True)
    assert slope(*independent) == pytest.approx(1, abs=0.1)
    assert independent[1] > 20 * covariance[1]


@pytest.mark.slow
def test_the_next_term_of_palindromes_is_of_fourth_order_and_of_shuffled_epochs_of_third():
    """Shuffled epochs are of second order too, with momentum: there palindromes gain no order.

    Richardson: twice the step minus four times the bias leaves the next term.
    """

    def next_order(rule):
        def make(e):
            return sghmc.BAOAB(e, FRICTION, MASS)

        seen = [
            theory.minibatch_law(make(e), posterior(), sghmc.Minibatch(1, rule), INIT).covariance
            - exact_covariance()
            for e in (0.02, 0.01, 0.005)
        ]
        rest = [np.linalg.norm(x - 4 * y) for x, y in itertools.pairwise(seen)]
        return slope(*rest)

    assert next_order("palindrome") == pytest.approx(4, abs=0.25)
    assert next_order("epochs") == pytest.approx(3, abs=0.25)


@pytest.mark.slow
def test_without_momentum_no_order_of_batches_helps():
    """SGLD: the half step that a palindrome repeats at its turning points is of first order."""
    for rule in ("epochs", "palindrome"):
        covariance, _ = biases(sghmc.SGLD, rule, (0.002, 0.001))
        assert slope(*covariance) == pytest.approx(1, abs=0.1)


@pytest.mark.slow_cases("not quadratic")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gradient": sghmc.FullBatch()}, r"needs batches of rows.*FullBatch.*stationary_law"),
        ({"sampler": sghmc.HMC(0.1, 3, metropolis=False)}, "one gradient a step, but HMC takes 4"),
        ({"sampler": sghmc.SGHMC(0.1, 1.0, resample_every=3)}, "resample_every"),
        ({"sampler": sghmc.BAOAB(1.1, 0.1)}, "unstable.*second moments.*smaller step_size"),
        ({"posterior": posterior(np.ones((9, 3)))}, r"9 rows.*3.63e\+05"),
        (
            {"posterior": sghmc.Posterior(lambda w, r: jnp.sum(jnp.cos(w)), lambda w: 0.0, ROWS)},
            "not affine on this posterior.*quadratic",
        ),
    ],
    ids=["gradient", "trajectories", "resampling", "unstable", "many rows", "not quadratic"],
)
def test_what_has_no_such_law_is_refused(change, message):
    arguments = {
        "sampler": sghmc.UBU(0.1, 1.0),
        "posterior": posterior(),
        "gradient": sghmc.Minibatch(1, "palindrome"),
        "init": INIT,
    } | change
    with pytest.raises((ValueError, TypeError), match=message):
        theory.minibatch_law(**arguments)
