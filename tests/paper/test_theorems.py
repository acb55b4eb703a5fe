"""All statements together: they hold, and one that does not is shown."""

import jax
import pytest

from sghmc.paper import theorems
from shown_tables import cells, fits


@pytest.fixture(scope="module")
def result():
    config = theorems.Config(**theorems.QUICK)
    return theorems.run(config, jax.random.key(0), progress=False)


@pytest.mark.slow
def test_all_hold(result):
    """Two are sampled, each within five standard errors: a false alarm in 800,000 seeds."""
    assert len(result["rows"]) == 16
    assert [row["statement"] for row in result["rows"] if not row["passed"]] == []
    assert all(claim.agrees for claim in theorems.claims({}, result))
    assert fits(theorems.table(result))
    assert len(theorems.plot(result).axes) == 4


@pytest.mark.slow
def test_a_failure_is_shown(result):
    rows = [row | {"passed": i != 3} for i, row in enumerate(result["rows"])]
    failed = {"rows": rows, "curves": {}}
    assert [claim.agrees for claim in theorems.claims({}, failed)] == [i != 3 for i in range(16)]
    assert ["no" in row[-1] for row in cells(theorems.table(failed))] == [i == 3 for i in range(16)]
