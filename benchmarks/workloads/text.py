"""Text for transformer.py: its parts, text of other kinds, and how good predictions of it are."""

import gzip
import pathlib
import string
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sghmc.models import Transformer
from sghmc.results.scores import ClassScores, class_scores
from sghmc.types import PyTree

NUM_VALIDATION = 20_000
"""Symbols by which settings and checkpoints are chosen: they tell losses apart by 0.01 bits."""
_BINS = 15
_CHUNK = 64
"""Windows that are predicted at once."""


class Split(NamedTuple):
    """A text as codes of its symbols. Training ends where validation begins; test is the end."""

    symbols: list[str]
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def read(path: pathlib.Path | str, num_train: int | None = None) -> Split:
    """90 % to train on, or the last `num_train` symbols of it; 5 % to choose by, 5 % to test."""
    path = pathlib.Path(path)
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    symbols, codes = np.unique(list(text), return_inverse=True)
    first, second = int(0.9 * len(codes)), int(0.95 * len(codes))
    start = 0 if num_train is None else max(0, first - num_train)
    codes = codes.astype(np.uint8 if len(symbols) <= 256 else np.int32)
    validation = codes[first : min(second, first + NUM_VALIDATION)]
    return Split(symbols.tolist(), codes[start:first], validation, codes[second:])


def other_kinds(split: Split) -> dict[str, np.ndarray]:
    """Texts as long as the test's that are not of its kind, made from it or from nothing.

    Symbols in any order; each word spelled backwards; and words of a language that nobody speaks,
    consonant after vowel.
    """
    rng = np.random.default_rng(0)
    code_of = {symbol: code for code, symbol in enumerate(split.symbols)}
    text = "".join(split.symbols[code] for code in split.test)
    backwards = "".join(word[::-1] for word in _words(text))
    vowels = [v for v in "aeiou" if v in code_of]
    consonants = [c for c in string.ascii_lowercase if c in code_of and c not in vowels]
    made = []
    while sum(map(len, made)) < len(text):
        number = rng.integers(1, 4)
        pairs = zip(rng.choice(consonants, number), rng.choice(vowels, number), strict=True)
        made.append("".join(c + v for c, v in pairs) + " ")
    kinds = {"shuffled": rng.permutation(split.test)}
    for name, other in (("backwards", backwards), ("made up", "".join(made)[: len(text)])):
        kinds[name] = np.array([code_of[symbol] for symbol in other], split.test.dtype)
    return kinds


def _words(text: str) -> list[str]:
    """Words and what is between them."""
    parts, current = [], ""
    for symbol in text:
        if current and symbol.isalpha() != current[-1].isalpha():
            parts.append(current)
            current = ""
        current += symbol
    return [*parts, current]


class Predictions(NamedTuple):
    """What some networks say of a text together: symbol by symbol, axes (symbol, code).

    `own_entropy` is the mean of the entropies of the single networks' predictions, in bits, and
    `own_bits` that of their bits per character.
    """

    probabilities: np.ndarray
    own_entropy: np.ndarray
    truth: np.ndarray
    context: int
    own_bits: float

    def bits(self) -> float:
        """Bits per character."""
        return _bits(self.probabilities, self.truth)

    def calibration_error(self) -> float:
        """Of the likeliest symbol."""
        return float(self._scores().ece)

    def error(self) -> float:
        return float(self._scores().error)

    def _scores(self) -> ClassScores:
        return class_scores(jnp.asarray(self.probabilities), jnp.asarray(self.truth), _BINS)

    def entropy(self) -> np.ndarray:
        return _entropy(self.probabilities)

    def information(self) -> np.ndarray:
        """What the symbol would tell of the parameters: mutual information, in bits."""
        return np.maximum(self.entropy() - self.own_entropy, 0)


def predictor(model: Transformer, text: np.ndarray) -> Callable[[Iterable[PyTree]], Predictions]:
    """Predictions of a text by parameters, averaged over all that are given.

    The text is cut into windows; each of its symbols is predicted once, from those before it in its
    window, as in the likelihood of a cut.
    """
    length = model.context
    count = (len(text) - 1) // length
    seen = jnp.asarray(text[: count * length].reshape(count, length), jnp.int32)

    @jax.jit
    def predicted(params: PyTree) -> jax.Array:
        def of_window(window):
            return jax.nn.softmax(model.apply(params, window))

        found = jax.lax.map(of_window, seen, batch_size=min(_CHUNK, count))
        return found.reshape(-1, model.num_symbols)

    def predict(members: Iterable[PyTree]) -> Predictions:
        truth = text[1 : count * length + 1].astype(np.int64)
        total, entropy, bits = np.zeros((len(truth), model.num_symbols)), np.zeros(len(truth)), []
        for params in members:
            found = np.asarray(predicted(params), np.float64)
            total, entropy = total + found, entropy + _entropy(found)
            bits.append(_bits(found, truth))
        number = len(bits)
        return Predictions(total / number, entropy / number, truth, length, float(np.mean(bits)))

    return predict


def _bits(probabilities: np.ndarray, truth: np.ndarray) -> float:
    chosen = probabilities[np.arange(len(truth)), truth]
    return float(-np.log2(np.maximum(chosen, 1e-12)).mean())


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -np.sum(probabilities * np.log2(np.maximum(probabilities, 1e-30)), axis=-1)


def calibration_of_all(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """Σ over codes of the mean |frequency − probability| in bins of a code's probability.

    The calibration error of the whole prediction, where the usual one looks at its largest
    probability only: every code is a question of yes or no.
    """
    error = 0.0
    for code in range(probabilities.shape[1]):
        promised = probabilities[:, code]
        bins = np.minimum((promised * _BINS).astype(int), _BINS - 1)
        error += np.abs(np.bincount(bins, (truth == code) - promised, _BINS)).sum()
    return float(error / len(truth))


def scores(test: Predictions, others: dict[str, Predictions]) -> dict[str, Any]:
    """Of the test text and, for uncertainty, beside texts of other kinds."""
    found: dict[str, Any] = {
        "bits": test.bits(),
        "error": test.error(),
        "ece": test.calibration_error(),
        "ece_all": calibration_of_all(test.probabilities, test.truth),
        "entropy": float(test.entropy().mean()),
        "information": float(test.information().mean()),
    }
    for kind, other in others.items():
        found |= {
            f"entropy, {kind}": float(other.entropy().mean()),
            f"information, {kind}": float(other.information().mean()),
            f"told apart by entropy, {kind}": told_apart(test.entropy(), other.entropy(), test),
            f"told apart by information, {kind}": told_apart(
                test.information(), other.information(), test
            ),
        }
    return found


def told_apart(here: np.ndarray, there: np.ndarray, like: Predictions) -> float:
    """How often a window of other text has the larger mean: 0.5 by chance, 1 at best (AUROC)."""
    here, there = (each.reshape(-1, like.context).mean(1) for each in (here, there))
    ordered = np.sort(here)
    below = np.searchsorted(ordered, there, "left") + np.searchsorted(ordered, there, "right")
    return float(below.mean() / (2 * len(ordered)))
