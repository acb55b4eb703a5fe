"""Several chains at once: networks of one shape, stacked, and run side by side by `vmap`."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_MARK = "_has_chain_axis"


class Chains(torch.nn.Module):
    """Networks of one shape as one module, whose parameters have a leading axis of chains.

    `chains(x)` gives the outputs of all, axes (chain, row, …). The loss of a sampler's step is the
    *sum* over chains of each one's mean over the batch: so every chain has its own gradient. Noise
    differs in every entry, and so between chains.

    >>> import torch
    >>> from sghmc.torch import SGHMC, Chains, GaussianPrior
    >>> chains = Chains([torch.nn.Linear(3, 2) for _ in range(4)])
    >>> x, y = torch.ones(5, 3), torch.zeros(5, dtype=torch.long)
    >>> outputs = chains(x)
    >>> outputs.shape
    torch.Size([4, 5, 2])
    >>> loss = sum(torch.nn.functional.cross_entropy(each, y) for each in outputs)
    """

    def __init__(self, models: Sequence[torch.nn.Module]):
        super().__init__()
        if not models:
            raise ValueError("Chains needs one network or more.")
        params, buffers = torch.func.stack_module_state(list(models))
        self.num_chains = len(models)
        # Names of a module's members have no dots.
        self.names = {name.replace(".", "/"): name for name in (*params, *buffers)}
        for name, param in params.items():
            stacked = torch.nn.Parameter(param.detach())
            setattr(stacked, _MARK, True)
            self.register_parameter(name.replace(".", "/"), stacked)
        for name, buffer in buffers.items():
            self.register_buffer(name.replace(".", "/"), buffer)
        # Not a member: its own parameters are never used.
        self._template = [copy.deepcopy(models[0]).to("meta")]

    @property
    def template(self) -> torch.nn.Module:
        """The network that all chains have in common, without numbers."""
        return self._template[0]

    def train(self, mode: bool = True) -> "Chains":
        self.template.train(mode)
        return super().train(mode)

    def forward(self, *inputs: Any) -> torch.Tensor:
        def one(params, buffers):
            return torch.func.functional_call(self.template, (params, buffers), inputs)

        params = {self.names[name]: param for name, param in self.named_parameters()}
        buffers = {self.names[name]: buffer for name, buffer in self.named_buffers()}
        return torch.func.vmap(one, randomness="different")(params, buffers)

    def chain(self, number: int) -> dict[str, torch.Tensor]:
        """Parameters and buffers of one chain, by the names that they have in its network."""
        members = [*self.named_parameters(), *self.named_buffers()]
        return {self.names[name]: member.detach()[number] for name, member in members}


def are_chains(params: Iterable[torch.Tensor]) -> bool:
    """Whether parameters have a leading axis of chains."""
    return any(hasattr(param, _MARK) for param in params)
