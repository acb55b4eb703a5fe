"""BlackJAX's SGHMC and SGLD by their top-level interface: what their steps do on a Gaussian."""

import json
import sys

import blackjax
import jax
import numpy as np

from workloads.affine import Setting, Step, look

jax.config.update("jax_enable_x64", True)


def gradient(position, minibatch):
    """Of the log-density −θ²/2; what is called a minibatch is its error."""
    return -position + minibatch


def stepper(algorithm, setting: Setting) -> Step:
    @jax.jit
    def move(key, positions):
        def one(key, position):
            of_batch, of_step = jax.random.split(key)
            minibatch = setting.noise**0.5 * jax.random.normal(of_batch, position.shape)
            return algorithm.step(of_step, position, minibatch, setting.step_size)

        return jax.vmap(one)(jax.random.split(key, len(positions)), positions)

    return lambda seed, states: np.asarray(move(jax.random.key(seed), states))


def main() -> None:
    settings = [Setting(*numbers) for numbers in json.loads(sys.argv[1])]
    makers = {
        "sghmc(gradient, alpha=α, beta=β)": lambda s: blackjax.sghmc(
            gradient, alpha=s.friction, beta=s.noise
        ),
        "sgld(gradient)": lambda s: blackjax.sgld(gradient),
    }
    samplers = {
        name: [look(stepper(make(setting), setting), 1) for setting in settings]
        for name, make in makers.items()
    }
    print(json.dumps({"version": blackjax.__version__, "samplers": samplers}))


if __name__ == "__main__":
    main()
