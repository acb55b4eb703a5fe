"""Likelihoods by name."""

from sghmc.recommender.rating_answers import LIKELIHOODS, reading_options


def test_likelihoods_have_the_names_of_the_docs():
    assert list(LIKELIHOODS) == ["gaussian", "ordinal", "implicit", "counts"]
    assert all(kind.name == name for name, kind in LIKELIHOODS.items())


def test_tables_are_read_as_the_likelihood_wants_them():
    assert reading_options("gaussian", "error") == {"duplicates": "error", "is_rated": True}
    assert reading_options("implicit", "error") == {"duplicates": "last", "is_rated": False}
    assert reading_options("counts", "error") == {"duplicates": "sum", "is_rated": False}
    assert reading_options("counts", "last") == {"duplicates": "last", "is_rated": False}
    assert reading_options("auto", "mean") == {"duplicates": "mean", "is_rated": False}
