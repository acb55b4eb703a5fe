"""How strongly a network's likelihood bends along each layer: what its mass should be.

On the host, in double precision and from some hundred rows: it is asked for a few times a fit, for
ever new shapes, and a compiled program for each would cost more than it saves.
"""

from collections.abc import Callable

import numpy as np

from sghmc.estimators.rows import Rows
from sghmc.types import PyTree

_NUM_POWER_STEPS = 6


def activate(name: str, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The activation, scaled so that a layer of weights of size 1 keeps sizes; its derivative."""
    if name == "relu":
        factor = (2 / z.shape[-1]) ** 0.5
        return factor * np.maximum(z, 0), factor * (z > 0)
    if name == "silu":
        factor = (2.8 / z.shape[-1]) ** 0.5
        gate = 1 / (1 + np.exp(-np.clip(z, -500, None)))
        return factor * z * gate, factor * gate * (1 + z * (1 - gate))
    factor = (1 / z.shape[-1]) ** 0.5
    value = np.tanh(z)
    return factor * value, factor * (1 - value**2)


class Pass:
    """A network's way from rows to outputs, kept to send tangents along and cotangents back."""

    def __init__(self, params: PyTree, x: np.ndarray, activation: str):
        self.params = params
        self.inputs, self.slopes = [x], []
        for layer in params[:-1]:
            z = self.inputs[-1] @ layer["weight"] + layer["bias"]
            value, slope = activate(activation, z)
            self.inputs.append(value)
            self.slopes.append(slope)
        self.output = self.inputs[-1] @ params[-1]["weight"] + params[-1]["bias"]

    def forward(self, layer: int, tangent: np.ndarray) -> np.ndarray:
        """The change of the outputs with that of a layer's sums."""
        for i in range(layer, len(self.slopes)):
            tangent = (tangent * self.slopes[i]) @ self.params[i + 1]["weight"]
        return tangent

    def backward(self, layer: int, cotangent: np.ndarray) -> np.ndarray:
        for i in reversed(range(layer, len(self.slopes))):
            cotangent = (cotangent @ self.params[i + 1]["weight"].T) * self.slopes[i]
        return cotangent


def largest_curvatures(params: PyTree, rows: Rows, activation: str) -> list[dict[str, float]]:
    """The largest eigenvalue of each leaf's block of the Gauss–Newton matrix."""
    run = Pass(params, rows.x, activation)
    bend = _bend(run.output, rows.weight[:, None])
    ones = np.ones((len(rows.weight), 1))
    return [
        {
            "bias": _largest(run, i, ones, bend),
            "weight": _largest(run, i, run.inputs[i], bend),
        }
        for i in range(len(params))
    ]


def _bend(output: np.ndarray, weight: np.ndarray) -> Callable:
    """The likelihood's Hessian in the logits, as a map of vectors."""
    p = np.exp(output - output.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return lambda v: weight * p * (v - (p * v).sum(1, keepdims=True))


def _largest(run: Pass, layer: int, inputs: np.ndarray, bend: Callable) -> float:
    shape = (inputs.shape[1], run.params[layer]["bias"].size)
    vector, value = np.random.default_rng(0).normal(size=shape), 0.0
    for _ in range(_NUM_POWER_STEPS):
        vector /= np.linalg.norm(vector) + np.finfo(float).tiny
        outputs = run.forward(layer, inputs @ vector)
        vector = inputs.T @ run.backward(layer, bend(outputs))
        value = float(np.linalg.norm(vector))
    return value
