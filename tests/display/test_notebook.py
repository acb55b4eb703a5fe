"""What a notebook shows: everything of ours as a small table, escaped, in nobody's colours."""

import jax.numpy as jnp
import pytest

import sghmc
from sghmc.results.health import Health

NAME = "<script>alert(1)</script>"
SHOWN = {
    "sampler": (sghmc.SGHMC(0.1, friction=jnp.eye(2)), ["SGHMC", "friction", "f32[2,2]"]),
    "names": (sghmc.SGHMC(0.1, friction={NAME: 1.0}), ["&lt;script&gt;"]),
    "wrapper": (
        sghmc.Whitened(sghmc.SGLD(0.1), jnp.zeros(2), jnp.eye(2)),
        ["Whitened", "SGLD(step_size=0.1)"],
    ),
    "gradient": (sghmc.Minibatch(5), ["Minibatch", "batch_size"]),
    "posterior": (
        sghmc.Posterior(lambda p, y: -y, lambda p: -p, {NAME: jnp.ones(7)}, hyper={"tau": 2.0}),
        ["Posterior", "f32[7]", "tau", "&lt;script&gt;"],
    ),
    "potential": (sghmc.Potential(lambda p: p), ["Potential", "&lt;lambda&gt;"]),
    "health": (
        Health((NAME,), 1.01, float("nan"), None, None, 0.02),
        ["Verdict: not trustworthy: &lt;script&gt;", "1.010", "not known", "+2.0%"],
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_table_with_everything_escaped(name):
    thing, words = SHOWN[name]
    shown = thing._repr_html_()
    for word in words:
        assert word in shown
    assert shown.startswith("<b>")
    assert shown.endswith("</table>")
    assert "<script" not in shown
    assert "color" not in shown  # it has the notebook's own, light or dark


def test_a_verdict_fits_a_terminal():
    health = Health(("a long reason " * 20,), 1.01, 50.0, 1.0, 0.1, 0.02, ("something " * 20,))
    assert max(map(len, str(health).splitlines())) <= 80
