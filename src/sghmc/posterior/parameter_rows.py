"""Posteriors over tables of parameters, of which an example uses a few rows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from sghmc.posterior.posterior import AbstractPosterior, RowPosterior
from sghmc.types import Evaluation, PyTree


class RowLikelihood(eqx.Module):
    """The log-likelihood of an example that uses a few rows of large tables of parameters.

        log p(x | θ) = f(θ[rows(x)], x)

    | field | meaning |
    | --- | --- |
    | `log_likelihood` | f(rows, example) or, with hyperparameters, f(rows, example, hyper) |
    | `rows` | function of an example: a pytree like the parameters, see below |

    Tables are arrays whose first axis counts rows: of users, items, words. `rows(example)` has for
    each table the number of the row that the example uses, or an array of numbers; None for an
    array of parameters that it uses as a whole. f gets these rows in the same structure: rows of a
    table, stacked if there are several, and whole arrays.

    It is the `log_likelihood` of a `Posterior` like any other. With a `RowPrior` the posterior can
    be sampled by `Lazy`, whose steps cost as much as the rows of a batch, not as all rows. A number
    beyond a table's end makes the potential NaN.

    >>> import jax.numpy as jnp
    >>> likelihood = RowLikelihood(
    ...     lambda rows, x: -0.5 * (x["rating"] - rows["user"] @ rows["item"]) ** 2,
    ...     lambda x: {"user": x["user"], "item": x["item"]},
    ... )
    >>> params = {"user": jnp.ones((5, 2)), "item": jnp.ones((3, 2))}
    >>> float(likelihood(params, {"user": 4, "item": 0, "rating": 3.0}))
    -0.5
    """

    log_likelihood: Callable[..., jax.Array]
    rows: Callable[[PyTree], PyTree]

    def __check_init__(self):
        for name in ("log_likelihood", "rows"):
            if not callable(getattr(self, name)):
                raise TypeError(f"{name} must be a function, not {getattr(self, name)!r}.")

    def __call__(self, params: PyTree, example: PyTree, *hyper: PyTree) -> jax.Array:
        return self.log_likelihood(_taken(params, self.rows(example)), example, *hyper)


class RowPrior(eqx.Module):
    """Parameters that are normal and independent given the hyperparameters: N(μ, 1/λ) each.

        log p(θ) = ½ Σ log λ − ½ Σ λ(θ − μ)²  (up to a constant)

    | field | meaning |
    | --- | --- |
    | `law` | law(rows) or, with hyperparameters, law(rows, hyper): means μ and precisions λ |

    `rows` is a pytree like the parameters with the numbers of some rows of each table, in a vector;
    the means and the precisions are those of these rows. Each is a number for all parameters, or a
    pytree like the parameters of numbers and of arrays that broadcast against the rows.

    It is the `log_prior` of a `Posterior` like any other. `Lazy` moves the rows that no example of
    a batch uses by it.

    >>> import jax.numpy as jnp
    >>> prior = RowPrior(lambda rows, hyper: (0.0, hyper))
    >>> prior({"user": jnp.ones((5, 2))}, {"user": jnp.array(4.0)}).round(3)  # 10 (½ log 4 − 2)
    Array(-13.069, dtype=float32)
    """

    law: Callable[..., tuple[PyTree, PyTree]]

    def __check_init__(self):
        if not callable(self.law):
            raise TypeError(f"RowPrior needs a function law(rows), not {self.law!r}.")

    def __call__(self, params: PyTree, *hyper: PyTree) -> jax.Array:
        every = jax.tree.map(lambda leaf: jnp.arange(len(jnp.atleast_1d(leaf))), params)
        mean, precision = self.moments(every, params, *hyper)
        terms = jax.tree.map(
            lambda x, m, p: jnp.sum(jnp.broadcast_to(jnp.log(p), x.shape) - p * (x - m) ** 2),
            params,
            mean,
            precision,
        )
        return 0.5 * jnp.sum(jnp.stack(jax.tree.leaves(terms)))

    def moments(self, rows: PyTree, like: PyTree, *hyper: PyTree) -> tuple[PyTree, PyTree]:
        """Return μ and λ of rows whose entries have the shapes and dtypes of `like`.

        They have the axes of `like`, of length 1 where all entries along an axis are equal.
        """
        found = self.law(rows, *hyper)
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"The law of a RowPrior must return (mean, precision), but returns {found!r}."
            )
        mean, precision = (
            jax.tree.map(_fitted, jax.tree.broadcast(each, like), like) for each in found
        )
        return mean, precision


class Touched(NamedTuple):
    """The rows that a batch uses, and the data's part of Ũ as a function of these alone.

    `rows` has a vector of numbers for each array of parameters, one number for each time that a
    row is used; None for an array that is used as a whole. `evaluate` takes these rows, and its
    gradient has an entry for each time, too.
    """

    rows: PyTree
    evaluate: Callable[[PyTree], Evaluation]


class RowTerms(NamedTuple):
    """The likelihood and the prior of single rows of a posterior's parameters."""

    posterior: RowPosterior
    likelihood: RowLikelihood
    prior: RowPrior

    @classmethod
    def of(cls, posterior: AbstractPosterior) -> "RowTerms | None":
        """Return the terms of a posterior over rows; None for others and for sharded data."""
        likelihood, prior = posterior.log_likelihood, posterior.log_prior
        if (
            isinstance(posterior, RowPosterior)
            and isinstance(likelihood, RowLikelihood)
            and isinstance(prior, RowPrior)
        ):
            return cls(posterior, likelihood, prior)
        return None

    def touched(self, batch: PyTree) -> Touched:
        numbers = jax.vmap(self.likelihood.rows)(batch)

        def potential(taken: PyTree) -> jax.Array:
            stacked = _each(
                lambda rows, leaf: leaf if rows is None else _shaped(leaf, rows.shape),
                numbers,
                taken,
            )
            axes = _each(lambda rows, _: None if rows is None else 0, numbers, taken)
            of_example = self.likelihood.log_likelihood
            terms = jax.vmap(
                lambda rows, example: of_example(rows, example, *self._hyper), in_axes=(axes, 0)
            )(stacked, batch)
            return self.posterior.scaled(jnp.sum(terms), batch)

        flat = jax.tree.map(lambda rows: rows.reshape(-1), numbers)
        return Touched(flat, lambda taken: Evaluation(*jax.value_and_grad(potential)(taken)))

    def moments(self, rows: PyTree, like: PyTree) -> tuple[PyTree, PyTree]:
        """Return the prior's means and precisions of these rows."""
        return self.prior.moments(rows, like, *self._hyper)

    @property
    def _hyper(self) -> tuple:
        return () if self.posterior.hyper is None else (self.posterior.hyper,)


def _each(function: Callable[[Any, Any], Any], rows: PyTree, params: PyTree) -> PyTree:
    """Apply a function to the row numbers (or None) and the array of each leaf."""
    leaves, treedef = jax.tree.flatten(params)
    numbers, of_rows = jax.tree.flatten(rows, is_leaf=lambda leaf: leaf is None)
    if of_rows != treedef:
        raise ValueError(
            f"rows(example) is a pytree {of_rows}, but the parameters are {treedef}: give the "
            f"number of a row, an array of numbers or None for each array of the parameters."
        )
    return jax.tree.unflatten(treedef, map(function, numbers, leaves))


def _taken(params: PyTree, rows: PyTree) -> PyTree:
    def of_leaf(numbers, leaf):
        if numbers is None:
            return leaf
        return leaf.at[numbers].get(mode="fill", fill_value=jnp.nan)

    return _each(of_leaf, rows, params)


def _shaped(rows: jax.Array, leading: tuple[int, ...]) -> jax.Array:
    return rows.reshape(*leading, *rows.shape[1:])


def _fitted(part: Any, like: Any) -> jax.Array:
    part = jnp.asarray(part, like.dtype)
    missing = len(like.shape) - part.ndim
    pairs = zip(part.shape, like.shape[max(missing, 0) :], strict=False)
    if missing < 0 or any(mine not in (1, theirs) for mine, theirs in pairs):
        raise ValueError(
            f"The law of a RowPrior gives an array of shape {part.shape} for rows of shape "
            f"{like.shape}: means and precisions must broadcast against them."
        )
    return part.reshape(*[1] * missing, *part.shape)
