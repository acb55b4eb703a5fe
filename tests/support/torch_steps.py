"""The steps of `sghmc.torch` for judges: with given noise, and as affine maps."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import torch

from laws import GaussianStep
from sghmc.torch.pieces import Piece

NUM_DATA = 7
"""N of all steps here: not 1."""


@contextlib.contextmanager
def scripted(*drawn: np.ndarray) -> Iterator[None]:
    """Standard normals are these, call by call; all of them must be asked for."""
    left = [torch.as_tensor(np.array(each)) for each in drawn]

    def normals(self: Piece):
        return self.shaped(left.pop(0).to(self.positions[0].dtype))

    real = Piece.normals
    Piece.normals = normals
    try:
        yield
        assert not left
    finally:
        Piece.normals = real


class Chain:
    """A sampler on U = ½θᵀAθ, with a gradient N(0, V) off; the prior's part of A is its own."""

    def __init__(self, make: Callable, precision, gradient_noise=0.0, sizes=None):
        size = len(precision)
        self.sizes = sizes or [size]
        self.params = [torch.zeros(n, dtype=torch.float64, requires_grad=True) for n in self.sizes]
        self.sampler = make(self.params)
        self.precision = np.asarray(precision) - np.diag(self._prior_precisions())
        noise = np.asarray(gradient_noise, float)
        noise = noise if noise.ndim == 2 else np.diag(np.broadcast_to(noise, (size,)))
        values, vectors = np.linalg.eigh(noise)
        self.root = vectors * np.sqrt(np.maximum(values, 0))
        self.size = size
        self._with_gradient(np.zeros(size))
        with contextlib.suppress(AssertionError), scripted(*self._zeros(), *self._zeros()):
            self.sampler.step()  # makes the states

    def _zeros(self):
        return [np.zeros(n) for n in self.sizes]

    def _prior_precisions(self) -> np.ndarray:
        groups = self.sampler.param_groups
        found = [np.full(len(p), g["prior"].precision) for g in groups for p in g["params"]]
        return np.concatenate(found)

    def _with_gradient(self, grad: np.ndarray) -> None:
        for param, part in zip(
            self.params, np.split(grad, np.cumsum(self.sizes)[:-1]), strict=True
        ):
            param.grad = torch.as_tensor(part / NUM_DATA)

    def _momenta(self):
        return [self.sampler.state[param].get("momentum") for param in self.params]

    @property
    def has_momentum(self) -> bool:
        return self._momenta()[0] is not None

    def state(self) -> np.ndarray:
        parts = [param.detach() for param in self.params]
        return torch.cat(parts + (self._momenta() if self.has_momentum else [])).numpy()

    def step(self, z: np.ndarray, own: np.ndarray, of_gradient: np.ndarray) -> np.ndarray:
        """z' of the step that runs."""
        targets = [param.data for param in self.params]
        targets += self._momenta() if self.has_momentum else []
        cuts = np.cumsum([target.numel() for target in targets])[:-1]
        for target, part in zip(targets, np.split(z, cuts), strict=True):
            target.copy_(torch.as_tensor(part))
        theta = z[: self.size]
        self._with_gradient(self.precision @ theta + self.root @ of_gradient)
        with scripted(*np.split(own, np.cumsum(self.sizes)[:-1])):
            self.sampler.step()
        return self.state().copy()


def real_step(make: Callable, precision, gradient_noise=0.0, sizes=None) -> GaussianStep:
    """z' = F z + N(0, Q) of the step that runs, by differences; it is seen to be affine."""
    chain = Chain(make, precision, gradient_noise, sizes)
    dimension, size = len(chain.state()), chain.size
    zero, none = np.zeros(dimension), np.zeros(size)
    origin = chain.step(zero, none, none)
    transition = np.stack([chain.step(e, none, none) for e in np.eye(dimension)], 1)
    own = np.stack([chain.step(zero, e, none) for e in np.eye(size)], 1)
    other = np.stack([chain.step(zero, none, e) for e in np.eye(size)], 1)
    transition, own, other = (x - origin[:, None] for x in (transition, own, other))
    z, n, g = (np.cos(np.arange(k) + 1.0) for k in (dimension, size, size))
    foretold = origin + transition @ z + own @ n + other @ g
    np.testing.assert_allclose(chain.step(z, n, g), foretold, rtol=1e-9, atol=1e-9)
    assert not np.any(origin)
    return GaussianStep(transition, own @ own.T + other @ other.T)
