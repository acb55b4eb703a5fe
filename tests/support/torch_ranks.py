"""One of two processes that sample together: `python torch_ranks.py RANK FILE OUT`.

Writes what DDP and `fully_shard` left of a network, and the noise of a step, to OUT.
"""

import copy
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
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


def checkpointed(wrap, path: str, rows) -> list[torch.Tensor]:
    """The weights of a run, and those of a run that was saved and loaded in the middle."""

    def flattened(model) -> torch.Tensor:
        whole = (getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters())
        return torch.cat([each.detach().reshape(-1) for each in whole])

    model, other = wrap(network()), wrap(network())
    sampler = SGHMC.from_learning_rate(model.parameters(), 4e-4, 0.1, **GIVEN)
    train(model, sampler, rows, 2)
    sampler.gibbs()
    names = ("model", "sampler")
    saved = dict(zip(names, get_state_dict(model, sampler), strict=True))
    dcp.save(saved, checkpoint_id=path)
    train(model, sampler, rows, 2)
    sampler.gibbs()
    resumed = SGHMC.from_learning_rate(other.parameters(), 4e-4, 0.1, **GIVEN)
    into = dict(zip(names, get_state_dict(other, resumed), strict=True))
    dcp.load(into, checkpoint_id=path)
    set_state_dict(other, resumed, model_state_dict=into["model"], optim_state_dict=into["sampler"])
    assert resumed.num_steps == 2
    train(other, resumed, rows, 2)
    resumed.gibbs()
    precision = [each.param_groups[0]["prior"].precision for each in (sampler, resumed)]
    return [flattened(model), flattened(other), torch.tensor(precision)]


def main(rank: int, file: str, out: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    rows = slice(20 * rank, 20 * rank + 20)  # half of the batch each
    found = {}
    model = DistributedDataParallel(network())
    train(model, SGHMC(model.parameters(), 0.02, friction=5.0, **GIVEN), rows)
    found["ddp"] = flat(model)
    model = DistributedDataParallel(network())
    sampler = SGHMC(model.parameters(), 0.02, friction=5.0, **{**GIVEN, "seed": rank})
    try:
        train(model, sampler, rows)
    except ValueError as error:
        found["error"] = str(error)
    alone = network()  # chains of processes that have nothing to do with each other
    train(alone, SGHMC(alone.parameters(), 0.02, friction=5.0, **{**GIVEN, "seed": rank}), rows, 1)
    mesh = init_device_mesh("cpu", (2,))
    wraps = {"ddp": DistributedDataParallel, "fsdp": lambda model: fully_shard(model, mesh=mesh)}
    for name, wrap in wraps.items():
        found[f"checkpointed {name}"] = checkpointed(wrap, f"{file}-{name}", rows)
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
