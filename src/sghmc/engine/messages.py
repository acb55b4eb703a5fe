"""Error messages of a run that went wrong: which chain, at which step, and the remedy."""

import numpy as np
from jaxtyping import Int

from sghmc.engine.chain import NEVER
from sghmc.gradients.noise import RunningNoise


def divergence(failed_at: Int[np.ndarray, " chain"]) -> str:
    """Return the message for chains that became non-finite at these steps."""
    failed = np.flatnonzero(failed_at < NEVER)
    first = failed[failed_at[failed].argmin()]
    return (
        f"Chain {first} became non-finite at step {failed_at[first]} "
        f"({len(failed)} of {len(failed_at)} chains did). Take a smaller step_size (sghmc.theory "
        f"has the stability limit), start nearer the mode, or look for NaN in the data; "
        f"throw=False returns the flagged draws, and this error carries them as .samples."
    )


def too_much_noise(noise: RunningNoise, is_raised: bool) -> str:
    """Return the message for an estimated V̂ that exceeds the injected noise.

    `is_raised` says that the friction was already raised to absorb it.
    """
    failed_at, needed, allowed = (
        np.atleast_1d(each) for each in (noise.failed_at, noise.needed, noise.allowed)
    )
    first = failed_at.argmin()
    needed, allowed = needed[first], allowed[first]
    where = (
        f"in chain {first} from step {failed_at[first]} on ({(failed_at < NEVER).sum()} of "
        f"{len(failed_at)} chains)"
    )
    if is_raised:
        fault = (
            f"The friction that the estimated gradient noise needs {where} makes the momentum "
            f"decay εC/M {needed:.4g}, but every chain diverges from {allowed:.4g} on"
        )
        remedy = f"a step_size at most {(allowed / needed) ** 0.5:.2g} times as large"
    else:
        fault = (
            f"The estimated gradient noise is too large {where}: along its worst direction V̂ is "
            f"{needed:.4g} times the friction (SGLD: the inverse preconditioner), but 2τ/ε leaves "
            f"room for {allowed:.4g} times only"
        )
        remedy = (
            f"a step_size at most {allowed / needed:.3g} times as large, {needed / allowed:.3g} "
            f"times the friction or EmpiricalFisher(raise_friction=True)"
        )
    return (
        f"{fault}. Take {remedy}, larger batches or ControlVariate; throw=False goes on, with "
        f"draws that are spread too wide."
    )
