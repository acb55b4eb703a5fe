"""Tries the sghmc that is installed: `python -I .ci/try_wheel.py none|all FOLDER`."""

import importlib.metadata
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np

import sghmc

EXTRAS = {  # what needs which
    "arviz": lambda samples, folder: samples.summary(),
    "checkpoint": lambda samples, folder: sample(sghmc.Checkpoint(folder / "run")),
    "cli": lambda samples, folder: __import__("sghmc.cli"),
    "data": lambda samples, folder: sghmc.data.Parquet(folder / "no.parquet"),
    "numpyro": lambda samples, folder: __import__("sghmc.interop.numpyro"),
    "sklearn": lambda samples, folder: sghmc.estimators.BayesianLinearRegression(),
}


def sample(checkpoint=None):
    """A Gaussian in two dimensions, from batches."""
    data = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    posterior = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        data,
    )
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGHMC(0.02, friction=20.0),
        jnp.zeros(2),
        gradient=sghmc.ControlVariate(10),
        num_samples=1000,
        num_chains=4,
        progress=False,
        checkpoint=checkpoint,
    )
    means = samples.positions.mean((0, 1))
    # The standard deviation of the posterior is 0.1.
    assert np.abs(means - data.sum(0) / 101).max() < 0.05, means
    return samples


def try_without_extras(folder: pathlib.Path) -> None:
    samples = sample()
    for extra, use in EXTRAS.items():
        told = "nothing: why is it an extra?"
        try:
            use(samples, folder)
        except ImportError as error:
            told = str(error)
        assert f"pip install 'sghmc-jax[{extra}]'" in told, (extra, told)
    command = [sys.executable, "-m", "sghmc", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert "sghmc-jax[cli]" in told.stderr


def try_with_all(folder: pathlib.Path) -> None:
    samples = sample(sghmc.Checkpoint(folder / "run"))
    assert samples.summary()["r_hat"].max() < 1.1
    rows = np.random.default_rng(1).normal(size=(60, 2))
    lines = [f"{x},{y},{x - 2 * y}" for x, y in rows]
    (folder / "table.csv").write_text("\n".join(["x,y,z", *lines]))
    command = pathlib.Path(sys.executable).with_name("sghmc")
    fit = ["fit", "table.csv", "--target", "z", "--model", "linear", "--out", "fit", "--quiet"]
    for arguments in (["--version"], ["report", "run", "--quiet"], fit, ["report", "fit", "-q"]):
        subprocess.run([command, *arguments], cwd=folder, check=True)
    for name in ("run/report.html", "fit/report.html", "fit/model.sghmc"):
        assert (folder / name).stat().st_size > 1000, name
    for module in ("estimators", "interop.numpyro", "data"):
        __import__(f"sghmc.{module}")


def main() -> None:
    extras, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    assert pathlib.Path(sghmc.__file__).is_relative_to(sys.prefix), sghmc.__file__
    assert importlib.metadata.version("sghmc-jax") == sghmc.__version__
    (try_with_all if extras == "all" else try_without_extras)(folder)
    print(f"The wheel of sghmc {sghmc.__version__} works with extras: {extras}.")


main()
