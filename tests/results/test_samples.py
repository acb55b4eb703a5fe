"""The draws of a run: converted, summarized and printed, whatever the parameters' structure."""

import collections
import os
import subprocess
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sghmc
from sghmc.results import report, summaries
from sghmc.results.samples import Samples
from sghmc.results.summaries import Info

Pair = collections.namedtuple("Pair", ["location", "scale"])

SHAPES = {
    "array": (jnp.zeros(3), {"position": (3,)}),
    "number": (jnp.zeros(()), {"position": ()}),
    "dict": (
        {"weights": jnp.zeros((2, 2)), "bias": jnp.zeros(())},
        {"weights": (2, 2), "bias": ()},
    ),
    "tuple": ((jnp.zeros(2), jnp.zeros(())), {"position[0]": (2,), "position[1]": ()}),
    "nested": (
        {"layers": [{"bias": jnp.zeros(2)}, {"bias": jnp.zeros(1)}]},
        {"layers[0].bias": (2,), "layers[1].bias": (1,)},
    ),
    "named tuple": (Pair(jnp.zeros(2), jnp.zeros(())), {"location": (2,), "scale": ()}),
}


def potential(params) -> jax.Array:
    return sum((jnp.sum(leaf**2) for leaf in jax.tree.leaves(params)), start=jnp.zeros(())) / 2


def draw(init, sampler=None, **arguments) -> Samples:
    sampler = sghmc.SGHMC(0.3, friction=1.0) if sampler is None else sampler
    settings = {"num_samples": 50, "num_chains": 2, "progress": False} | arguments
    return sghmc.sample(jax.random.key(0), sghmc.Potential(potential), sampler, init, **settings)


def handmade(positions, hyper=None, *, is_finite=None) -> Samples:
    """What a run would return, without its compilation."""
    shape = jax.tree.leaves(positions)[0].shape[:2]
    is_finite = np.ones(shape, bool) if is_finite is None else is_finite
    return Samples(
        positions=positions,
        hyper=hyper,
        averages={},
        trace={},
        info=Info(np.zeros(shape), is_finite),
        num_steps=shape[1],
        seconds=0.1,
        startup_seconds=0.0,
    )


def random_draws(like):
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: generator.normal(size=(2, 50, *leaf.shape)), like)


@pytest.mark.filterwarnings("ignore::sghmc.HealthWarning")  # the runs are short
@pytest.mark.parametrize(("init", "variables"), SHAPES.values(), ids=SHAPES.keys())
def test_every_structure_converts_and_summarizes(init, variables):
    samples = handmade(random_draws(init))
    data = samples.to_arviz()
    assert {name: v.shape for name, v in data["posterior"].items()} == {
        name: (2, 50, *shape) for name, shape in variables.items()
    }
    for leaf, converted in zip(
        jax.tree.leaves(samples.positions),
        (data["posterior"][name].values for name in _in_tree_order(samples, variables)),
        strict=True,
    ):
        np.testing.assert_array_equal(leaf, converted)
    table = samples.summary()
    assert len(table) == sum(int(np.prod(shape)) for shape in variables.values())
    wanted = {"mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "ess_tail", "r_hat"}
    assert wanted <= set(table.columns)
    assert np.isfinite(table[sorted(wanted)].to_numpy()).all()


def test_constrained_parameters_are_on_their_own_scale():
    """In tables, for arviz and for the verdict; `positions` stay as they were sampled."""
    space = sghmc.transforms.Space({"sd": sghmc.transforms.Positive()})
    init = {"mean": jnp.zeros(()), "sd": jnp.zeros(())}
    for target in (
        space.potential(lambda p: p["mean"] ** 2 + p["sd"]),
        space.posterior(lambda p, y: -p["sd"] * y, lambda p: -(p["mean"] ** 2), jnp.ones(3)),
    ):
        sampler = sghmc.HMC(0.1, 2)
        samples = sghmc.sample(
            jax.random.key(0), target, sampler, init,
            num_samples=20, num_chains=2, progress=False,
        )  # fmt: skip
        np.testing.assert_allclose(
            samples.variables["sd"], space.constrain(samples.positions)["sd"]
        )
        assert samples.variables["sd"].min() > 0 > samples.positions["sd"].min()
        np.testing.assert_array_equal(
            samples.to_arviz()["posterior"]["sd"], samples.variables["sd"]
        )
        kept = sghmc.sample(
            jax.random.key(0), target, sampler, init,
            num_samples=20, num_chains=2, progress=False, keep=space.constrain,
        )  # fmt: skip
        np.testing.assert_array_equal(kept.variables["sd"], kept.positions["sd"])


def _in_tree_order(samples, variables):
    # jax flattens dictionaries by sorted keys.
    return sorted(variables) if isinstance(samples.positions, dict) else list(variables)


@pytest.mark.slow
def test_statistics_come_along():
    samples = draw(jnp.zeros(2), sghmc.HMC(0.3, num_steps=3))
    stats = samples.to_arviz()["sample_stats"]
    assert set(stats) == {"potential", "kinetic_temperature", "acceptance_rate", "diverging"}
    np.testing.assert_array_equal(stats["potential"], samples.info.potential)
    np.testing.assert_array_equal(stats["acceptance_rate"], samples.info.acceptance)
    assert not stats["diverging"].any()
    assert set(draw(jnp.zeros(2), sghmc.SGLD(0.1)).to_arviz()["sample_stats"]) == {
        "potential",
        "diverging",
    }


def test_draws_that_are_not_finite_are_diverging():
    is_finite = np.ones((2, 10), bool)
    is_finite[1, 6:] = False
    samples = handmade(np.zeros((2, 10)), is_finite=is_finite)
    np.testing.assert_array_equal(samples.to_arviz()["sample_stats"]["diverging"], ~is_finite)
    assert "1 of 2 chains not finite" in repr(samples)


@pytest.mark.filterwarnings("ignore::sghmc.HealthWarning")  # there are 100 draws
def test_hyperparameters_follow_the_parameters():
    samples = handmade(random_draws(jnp.zeros(())), {"precision": np.ones((2, 50))})
    assert list(samples.to_arviz()["posterior"]) == ["position", "hyper.precision"]
    assert list(samples.summary(["hyper.precision"]).index) == ["hyper.precision"]
    with pytest.raises(ValueError, match="both a parameter and a hyperparameter"):
        handmade({"hyper": np.zeros((2, 5))}, np.zeros((2, 5))).to_arviz()


def test_summary_knows_the_exact_answer():
    draws = np.random.default_rng(0).normal(2.0, 3.0, (4, 5000)).astype(np.float32)
    row = handmade({"theta": draws}).summary().loc["theta"]
    # Four standard errors of the mean and of the sd: a false alarm in 10,000 for a new seed.
    assert row["mean"] == pytest.approx(2.0, abs=4 * 3 / np.sqrt(20_000))
    assert row["sd"] == pytest.approx(3.0, abs=4 * 3 / np.sqrt(40_000))
    assert row["ess_bulk"] == pytest.approx(20_000, rel=0.1)
    assert row["r_hat"] == pytest.approx(1.0, abs=0.002)


@pytest.mark.slow
def test_summary_of_unknown_or_missing_variables_is_a_clear_error():
    samples = handmade({"theta": np.zeros((2, 10))})
    with pytest.raises(ValueError, match=r"no variable 'weights'.*theta"):
        samples.summary(["weights"])
    with pytest.raises(ValueError, match="kept nothing"):
        draw(jnp.zeros(2), keep=lambda position: ()).to_arviz()


def test_more_chains_than_draws_are_no_mistake():
    data = handmade(np.zeros((8, 5))).to_arviz()
    assert data["posterior"].sizes == {"chain": 8, "draw": 5}


@pytest.mark.slow
def test_printing_says_what_there_is():
    samples = draw({"weights": jnp.zeros(3)}, sghmc.HMC(0.3, num_steps=3))
    text = repr(samples)
    for part in ("2 chains × 50 draws", "50 steps", "weights (3,)", "acceptance", "all finite"):
        assert part in text
    assert ">weights</td>" in samples._repr_html_()
    many = {f"layer{i:02}": np.zeros((1, 1)) for i in range(20)}
    assert "and 14 more" in repr(handmade(many))
    assert "nothing kept" in repr(draw(jnp.zeros(2), keep=lambda position: ()))
    assert "&lt;b&gt;" in handmade({"<b>": np.zeros((2, 3))})._repr_html_()


@pytest.mark.slow
def test_importing_sghmc_does_not_import_what_only_some_calls_need():
    heavy = "{'arviz', 'pandas', 'matplotlib', 'sklearn', 'typer'}"
    code = f"import sys, sghmc; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_home_that_cannot_be_written_to_does_not_stop_the_summary():
    pytest.importorskip("arviz", reason="arviz is not installed")
    code = "import sghmc.results.summaries as d; print(d._import_arviz().__name__)"
    environment = os.environ | {"XDG_CACHE_HOME": "/dev/null/nowhere"}
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == "arviz"


def test_a_report_has_the_statistics_that_there_are(monkeypatch, tmp_path):
    samples, asked = handmade(np.random.default_rng(0).normal(size=(2, 50))), []
    monkeypatch.setattr(report, "run_page", lambda *args: asked.append(args) or "a page")
    samples.report(tmp_path / "page.html")
    statistics = asked[0][6]
    assert set(statistics) == {"potential"}
    assert statistics["potential"][1] is None
    assert asked[0][4] == 1


def test_plots_are_those_of_arviz_by_their_names(monkeypatch):
    asked = []
    arviz = types.SimpleNamespace(plot_trace=lambda data, **given: asked.append(given) or "axes")
    monkeypatch.setattr(summaries, "_import_arviz", lambda: arviz)
    data: Any = {"posterior": types.SimpleNamespace(data_vars={"x": 0, "y": 1})}
    assert summaries.plot(data, "trace", ["y"], compact=True) == "axes"
    assert asked == [{"var_names": ["y"], "compact": True}]
    with pytest.raises(ValueError, match="There is no plot 'wave': there are"):
        summaries.plot(data, "wave", None)
    with pytest.raises(ValueError, match="no variable 'z' among the draws"):
        summaries.plot(data, "trace", ["z"])


def test_the_worst_entry_is_that_of_known_ones():
    columns = {"r_hat": np.array([1.2, np.nan, 1.5]), "ess_bulk": np.array([np.nan, 7.0, 9.0])}
    table = summaries.SummaryTable(["a", "b", "c"], columns)
    assert table.worst("r_hat", is_largest=True) == ("c", 1.5)
    assert table.worst("r_hat", is_largest=False) == ("a", 1.2)
    assert table.worst("ess_bulk", is_largest=False) == ("b", 7.0)
    name, value = summaries.SummaryTable(["a"], {"r_hat": np.array([np.nan])}).worst(
        "r_hat", is_largest=True
    )
    assert name == ""
    assert np.isnan(value)


def test_of_many_quantities_some_are_taken_evenly():
    draws = {"a": np.zeros((1, 2, 4)), "b": np.ones((1, 2)), "c": np.full((1, 2, 2, 3), 2.0)}
    assert list(summaries.quantities(draws, 4)) == ["a[0]", "a[3]", "c[0, 1]", "c[1, 2]"]
    whole = summaries.quantities(draws)
    assert list(whole)[3:6] == ["a[3]", "b", "c[0, 0]"]
    assert len(whole) == 11
    assert all(leaf.shape == (1, 2) for leaf in whole.values())
