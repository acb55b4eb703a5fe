"""Likelihoods by name."""

import numpy as np
import pytest

from sghmc.recommender.likelihood_choice import LIKELIHOODS, name_of, reading


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_names_lead_there_and_back(name):
    assert name_of(LIKELIHOODS[name](np.array([0.0, 1.0]))) == name


def test_tables_are_read_as_the_likelihood_wants_them():
    assert reading("gaussian", "error") == {"duplicates": "error", "is_rated": True}
    assert reading("implicit", "error") == {"duplicates": "last", "is_rated": False}
    assert reading("counts", "error") == {"duplicates": "sum", "is_rated": False}
    assert reading("counts", "last") == {"duplicates": "last", "is_rated": False}
    assert reading("auto", "mean") == {"duplicates": "mean", "is_rated": False}
