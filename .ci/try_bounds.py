"""Try the sghmc that is installed, with its extras: `python -I .ci/try_bounds.py README.md FOLDER`.

`.ci/bounds` runs this beside the oldest and the newest versions of what sghmc requires.
"""

import contextlib
import importlib.metadata
import io
import pathlib
import re
import subprocess
import sys
import threading
import time
import warnings
from _thread import interrupt_main

import jax
import jax.numpy as jnp
import numpy as np

import sghmc
from sghmc.estimators import BayesianLinearRegression


def run_command(folder: pathlib.Path, *arguments: str) -> str:
    """Run the command `sghmc` in the folder and return what it printed."""
    command = [str(pathlib.Path(sys.executable).with_name("sghmc")), *arguments]
    ended = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr)
    return ended.stdout


def try_readme(readme: pathlib.Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", readme.read_text("utf-8"), re.DOTALL)
    names: dict = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), names)
    assert "ess_bulk" in printed.getvalue()
    samples = names["samples"]
    assert set(samples.to_arviz()["posterior"].dims) >= {"chain", "draw"}
    assert samples.summary()["r_hat"].max() < 1.1
    assert not samples.health().reasons, samples.health()
    # The standard deviations of these posteriors are below 0.02.
    assert np.abs(samples.positions.mean((0, 1)) - [1.0, -2.0, 0.5]).max() < 0.1


def try_commands(folder: pathlib.Path) -> None:
    for arguments in (["--help"], ["fit", "--help"], ["report", "--help"]):
        assert "Usage" in run_command(folder, *arguments), arguments
    assert run_command(folder, "--version").strip().endswith(sghmc.__version__)
    rows = np.random.default_rng(1).normal(size=(60, 2))
    lines = [f"{x},{y},{x - 2 * y}" for x, y in rows]
    (folder / "table.csv").write_text("\n".join(["x,y,z", *lines]))
    table = ["table.csv", "--target", "z", "--model", "linear"]
    run_command(folder, "fit", *table, "--out", "fit", "--quiet")
    run_command(folder, "predict", "fit", "table.csv", "--out", "predicted.csv", "--quiet")
    run_command(folder, "report", "fit", "--quiet")
    for name in ("fit/report.html", "fit/model.sghmc", "predicted.csv"):
        assert (folder / name).stat().st_size > 1000, name


def interrupt_after_first_save(folder: pathlib.Path) -> None:
    """Send Ctrl-C to this process once the run has saved."""
    while not any(each.name.isdecimal() for each in folder.glob("saves/*")):
        time.sleep(0.01)
    interrupt_main()


def try_checkpoint(folder: pathlib.Path) -> None:
    """A run that Ctrl-C ends and that is resumed has the draws of one that was never stopped."""
    data = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    posterior = sghmc.Posterior(
        lambda theta, x: -0.5 * jnp.sum((x - theta) ** 2),
        lambda theta: -0.5 * jnp.sum(theta**2),
        data,
    )

    def sample(checkpoint=None):
        return sghmc.sample(
            jax.random.key(0),
            posterior,
            sghmc.SGHMC(0.02, friction=20.0),
            jnp.zeros(2),
            gradient=sghmc.ControlVariate(10),
            num_samples=200_000,
            num_chains=4,
            progress=False,
            checkpoint=checkpoint,
        )

    checkpoint = sghmc.Checkpoint(folder / "run", seconds=0.01)
    threading.Thread(target=interrupt_after_first_save, args=(folder / "run",), daemon=True).start()
    with warnings.catch_warnings():  # of the interruption
        warnings.simplefilter("ignore")
        stopped = sample(checkpoint)
    whole = sample()
    assert 0 < stopped.num_draws < whole.num_draws, (stopped.num_draws, whole.num_draws)
    resumed = sample(checkpoint)
    np.testing.assert_array_equal(resumed.positions, whole.positions)
    # The standard deviation of the posterior is 0.1.
    assert np.abs(whole.positions.mean((0, 1)) - data.sum(0) / 101).max() < 0.05
    import xarray

    draws = xarray.open_dataset(folder / "run" / "draws", engine="zarr", group="posterior")
    (values,) = (np.asarray(each) for each in draws.data_vars.values())
    np.testing.assert_array_equal(values, whole.positions)
    run_command(folder, "report", "run", "--quiet")
    assert (folder / "run/report.html").stat().st_size > 1000


def try_estimator() -> None:
    rows = np.random.default_rng(2).normal(size=(80, 3))
    model = BayesianLinearRegression(progress=False)
    model.fit(rows, rows @ [1.0, 2.0, -1.0])
    assert model.score(rows, rows @ [1.0, 2.0, -1.0]) > 0.99


def try_numpyro() -> None:
    import numpyro
    import numpyro.distributions as dist

    import sghmc.interop.numpyro

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(y)):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    y = 0.7 * jax.random.normal(jax.random.key(3), (400,))
    posterior = sghmc.interop.numpyro.posterior(model, y)
    samples = sghmc.sample(
        jax.random.key(0),
        posterior,
        sghmc.SGHMC(0.01, friction=20.0),
        posterior.init(jax.random.key(1)),
        num_samples=500,
        num_chains=4,
        num_burnin=500,
        progress=False,
    )
    drawn = posterior.draws(samples)["scale"]
    # The standard deviation of the posterior is 0.025.
    assert abs(drawn.mean() - jnp.sqrt(jnp.mean(y**2))) < 0.03, drawn.mean()


def try_references() -> None:
    """NUTS of NumPyro and of blackjax."""
    potential = sghmc.Potential(lambda theta: jnp.sum((theta - 2.0) ** 2) / 2)
    for backend in ("numpyro", "blackjax"):
        drawn = sghmc.interop.nuts(
            jax.random.key(0), potential, jnp.zeros(2), num_samples=400, backend=backend
        )
        assert np.abs(drawn.positions.mean((0, 1)) - 2).max() < 0.4, backend


def try_parquet(folder: pathlib.Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = np.arange(12.0)
    pyarrow.parquet.write_table(pyarrow.table({"x": rows}), folder / "rows.parquet")
    for path in (folder / "rows.parquet", f"file://{folder}/rows.parquet"):
        source = sghmc.data.Parquet(path, columns=["x"])
        assert source.take(np.array([7]))["x"] == [7.0]


def try_torch() -> None:
    """One step of the optimizer, where PyTorch was installed."""
    try:
        import torch
    except ImportError:
        return
    from sghmc.torch import SGHMC

    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = SGHMC([weight], 0.1, friction=1.0)
    (weight.sum() - 1).square().backward()
    optimizer.step()
    assert torch.all(weight != 0)


def main() -> None:
    readme, folder = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    assert pathlib.Path(sghmc.__file__).is_relative_to(sys.prefix), sghmc.__file__
    assert importlib.metadata.version("sghmc-jax") == sghmc.__version__
    try_commands(folder)
    try_readme(readme)
    try_checkpoint(folder)
    try_estimator()
    try_parquet(folder)
    try_numpyro()
    try_references()
    try_torch()


main()
