"""One of two processes that sample together: `python torch_ranks.py RANK FILE OUT`.

Writes what DDP and `fully_shard` left of a network, and the noise of a step, to OUT.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from sghmc.torch import SGHMC, SGLD, SGNHT, Collector, GaussianPrior
from torch_cases import data, flat, network

GIVEN = {"num_data": 40, "prior": GaussianPrior(2.0), "seed": 3}
NUM_STEPS = 3


def train(model, sampler, rows, num_steps: int = NUM_STEPS) -> None:
    x, y = data()
    for _ in range(num_steps):
        sampler.zero_grad()
        torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        sampler.step()


def whole(model) -> torch.Tensor:
    return torch.cat([p.full_tensor().detach().reshape(-1) for p in model.parameters()])


def main(rank: int, file: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    rows = slice(20 * rank, 20 * rank + 20)  # half of the batch each
    found = {}
    model = DistributedDataParallel(network())
    train(model, SGHMC(model.parameters(), 0.02, friction=5.0, **GIVEN), rows)
    found["ddp"] = flat(model)
    mesh = init_device_mesh("cpu", (2,))
    model = network()
    fully_shard(model, mesh=mesh)
    sampler = SGHMC(model.parameters(), 0.02, friction=5.0, temperature=0.0, **GIVEN)
    train(model, sampler, rows)
    found["fsdp without noise"] = whole(model)
    start = whole(model)
    sampler = SGLD(model.parameters(), 0.5, num_data=1, prior=None, seed=3)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    sampler.step()
    found["fsdp noise"] = whole(model) - start
    sampler = SGNHT(model.parameters(), 0.02, **GIVEN)
    collector = Collector(model, sampler)
    train(model, sampler, rows)
    sampler.gibbs()
    collector.step()
    found["drawn"] = torch.as_tensor(collector.samples().positions["0.weight"])
    saved, before = copy.deepcopy(sampler.state_dict()), whole(model)
    train(model, sampler, rows, 1)
    found["on"] = whole(model)
    prior, thermostat = (sampler.param_groups[0][n] for n in ("prior", "thermostat_value"))
    found["shared"] = torch.tensor([prior.precision, thermostat.item()])
    for param, part in zip(model.parameters(), before.split([12, 4, 8, 2]), strict=True):
        size = param.to_local().shape[0]
        with torch.no_grad():
            param.to_local().copy_(part.view(param.shape).chunk(2)[rank][:size])
    other = SGNHT(model.parameters(), 0.02, **GIVEN)
    other.load_state_dict(saved)
    train(model, other, rows, 1)
    found["resumed"] = whole(model)
    torch.save(found, out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
