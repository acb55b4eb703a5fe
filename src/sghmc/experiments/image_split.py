"""Images of digits in three parts: to learn from, to choose settings by, to judge by."""

from typing import Any, NamedTuple

import numpy as np

from sghmc.data.mnist import Images, load_mnist

_NUM_LEVELS = 256
"""Of gray: pixels are divided by it, as in the authors' scripts."""
_NUM_DIGITS = 1297
"""Training rows of scikit-learn's 1,797 digits; 500 are left to judge by."""


class Split(NamedTuple):
    train: Images
    validation: Images
    test: Images


def load(dataset: str, data: str | None, num_validation: int) -> Split:
    """The validation rows are a random part of the training rows."""
    if dataset == "mnist":
        train, test = load_mnist(data)
    elif dataset == "digits":
        train, test = _digits()
    else:
        raise ValueError(f'dataset must be "mnist" or "digits", but is {dataset!r}.')
    train, test = (Images(x.astype(np.float32) / _NUM_LEVELS, y) for x, y in (train, test))
    order = np.random.default_rng(0).permutation(len(train.y))
    held, rest = order[:num_validation], order[num_validation:]
    return Split(Images(train.x[rest], train.y[rest]), Images(train.x[held], train.y[held]), test)


def _digits() -> tuple[Images, Images]:
    """scikit-learn's 8 × 8 digits, whose 16 levels are brought to the range of MNIST's pixels."""
    from sklearn.datasets import load_digits

    digits: Any = load_digits()
    order = np.random.default_rng(1).permutation(len(digits.target))
    x, y = 16 * digits.data[order], digits.target[order].astype(np.int32)
    return Images(x[:_NUM_DIGITS], y[:_NUM_DIGITS]), Images(x[_NUM_DIGITS:], y[_NUM_DIGITS:])
