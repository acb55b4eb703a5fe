"""How a run ends that went wrong: each error carries what was drawn."""

from sghmc.results.samples import Samples


class GradientNoiseError(ValueError):
    """An estimate of the gradient noise leaves no room. `samples` holds what was drawn."""

    def __init__(self, message: str, samples: Samples):
        super().__init__(message)
        self.samples = samples


class DivergenceError(FloatingPointError):
    """A chain became non-finite. `samples` holds everything drawn until then."""

    def __init__(self, message: str, samples: Samples):
        super().__init__(message)
        self.samples = samples
