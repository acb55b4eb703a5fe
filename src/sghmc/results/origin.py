"""What made the draws of a run."""

import dataclasses

from sghmc.gradients.base import Gradient, GradientEstimator
from sghmc.posterior.target import Target
from sghmc.samplers.base import Sampler


@dataclasses.dataclass(frozen=True)
class Origin:
    """Target, sampler and gradient of a run, and the temperature of its last step."""

    target: Target
    sampler: Sampler
    gradient: Gradient
    estimator: GradientEstimator
    temperature: float
    is_adapted: bool = False


@dataclasses.dataclass(frozen=True)
class SavedOrigin:
    """The same in words: of a run read from its folder, or made by another library's loop."""

    arguments: dict[str, str]
    temperature: float | None
