"""What changes a sampler while it burns in, and leaves it alone from then on."""

from sghmc.adapt.base import Adapt, Adaptation, Moment

__all__ = ["Adapt", "Adaptation", "Moment"]
