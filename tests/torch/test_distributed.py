# ruff: noqa: E402
"""Two processes: DDP draws the same noise on both, `fully_shard` its own on each."""

import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from sghmc.torch import SGHMC, GaussianPrior
from torch_cases import data, flat, network

SUPPORT = pathlib.Path(__file__).parents[1] / "support"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    paths = [str(SUPPORT), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    outs = [folder / f"rank{rank}.pt" for rank in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, SUPPORT / "torch_ranks.py", str(rank), folder / "meet", out],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, out in enumerate(outs)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
    return [torch.load(out, weights_only=True) for out in outs]


def alone(temperature: float):
    """The same chain in one process, with the whole batch."""
    model = network()
    given = {"num_data": 40, "prior": GaussianPrior(2.0), "seed": 3}
    sampler = SGHMC(model.parameters(), 0.02, friction=5.0, temperature=temperature, **given)
    x, y = data()
    for _ in range(3):
        sampler.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        sampler.step()
    return flat(model)


def test_ddp_is_the_chain_of_one_process(ranks):
    assert torch.equal(ranks[0]["ddp"], ranks[1]["ddp"])
    torch.testing.assert_close(ranks[0]["ddp"], alone(1.0), rtol=1e-5, atol=1e-6)


def test_shards_take_the_same_gradient(ranks):
    torch.testing.assert_close(ranks[0]["fsdp without noise"], alone(0.0), rtol=1e-5, atol=1e-6)


def test_every_shard_has_its_own_noise(ranks):
    noise = ranks[0]["fsdp noise"]
    assert torch.equal(noise, ranks[1]["fsdp noise"])  # both see all shards
    assert len(torch.unique(noise)) == len(noise) == 26
    assert 0.5 < noise.std() < 1.6


def test_thermostat_and_precision_are_those_of_all_shards(ranks):
    assert torch.equal(ranks[0]["shared"], ranks[1]["shared"])


def test_shards_resume_bit_for_bit(ranks):
    for rank in ranks:
        assert torch.equal(rank["on"], rank["resumed"])


def test_a_draw_is_whole(ranks):
    assert ranks[0]["drawn"].shape == (1, 1, 4, 3)
    assert torch.equal(ranks[0]["drawn"], ranks[1]["drawn"])


def test_replicas_with_different_seeds_are_refused(ranks):
    for rank in ranks:
        assert "the replicas drift apart. Give all the same seed." in rank["error"]


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_distributed_checkpoint_resumes_bit_for_bit(ranks, name):
    """`torch.distributed.checkpoint` keeps parameter groups, and nothing beside them."""
    for rank in ranks:
        went_on, resumed, precision = rank[f"checkpointed {name}"]
        assert torch.equal(went_on, resumed)
        assert precision[0] == precision[1] != 2.0
