# ruff: noqa: E402
"""Predictions by each link are the averages written out, and what cannot be is refused."""

import math
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from scipy import stats

from sghmc.torch import Collector, gaussian_loss
from sghmc.torch.predict import parts, predict

FUNCTIONAL = torch.nn.functional


def of_outputs(outputs: Any, targets=None, **given):
    """A prediction from the outputs of draws, as if the inputs were nothing."""
    draws = [{"number": torch.tensor(number)} for number in range(len(outputs))]
    batch = torch.zeros(()) if targets is None else (torch.zeros(()), targets)
    return predict(lambda draw, x: outputs[draw["number"]], lambda: iter(draws), [batch], **given)


def numbers(*shape: int):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_one_logit_is_a_yes_or_no():
    outputs, y = numbers(3, 8, 1), torch.tensor([0, 1] * 4)
    seen = of_outputs(outputs, y, link="sigmoid")
    p = torch.sigmoid(outputs)
    mean = p.mean(0)
    torch.testing.assert_close(seen.probabilities, mean)
    entropy = lambda q: -(q * q.log() + (1 - q) * (1 - q).log())  # noqa: E731
    torch.testing.assert_close(seen.entropy, entropy(mean))
    torch.testing.assert_close(seen.mutual_information, entropy(mean) - entropy(p).mean(0))
    expected = FUNCTIONAL.binary_cross_entropy(mean[:, 0], y.float()).item()
    assert seen.nll() == pytest.approx(expected)
    assert of_outputs(torch.zeros(2, 5, 1), link="sigmoid").entropy[0] == pytest.approx(math.log(2))


def test_images_have_their_classes_where_the_axis_says():
    outputs, y = numbers(3, 2, 5, 4, 4), torch.ones(2, 4, 4, dtype=torch.long)
    seen = of_outputs(outputs, y, link="softmax", axis=1)
    torch.testing.assert_close(seen.probabilities, torch.softmax(outputs, 2).mean(0))
    assert seen.entropy.shape == (2, 4, 4)
    assert seen.nll() == pytest.approx(-seen.probabilities[:, 1].log().mean().item(), rel=1e-5)
    with pytest.raises(ValueError, match="give axis=, that of the classes"):
        of_outputs(outputs, link="softmax")


def test_a_regression_is_a_mixture_of_gaussians():
    outputs, y = numbers(6, 9, 1), numbers(9)
    seen = of_outputs(outputs, y, link="gaussian", noise=0.4)
    f = outputs[..., 0].double().numpy()
    np.testing.assert_allclose(seen.mean[:, 0], f.mean(0))
    np.testing.assert_allclose(seen.model_deviation[:, 0], f.std(0))
    np.testing.assert_allclose(seen.standard_deviation[:, 0], np.sqrt(f.var(0) + 0.16))
    density = stats.norm.pdf(y.numpy(), f, 0.4).mean(0)
    assert seen.nll() == pytest.approx(-np.log(density).mean())
    below = stats.norm.cdf(y.numpy(), f, 0.4).mean(0)
    assert seen.coverage(0.6) == pytest.approx(np.mean(np.abs(below - 0.5) <= 0.3))
    with pytest.raises(ValueError, match=r"targets have shape \(3,\), the outputs \(9, 1\)"):
        of_outputs(outputs, y[:3], link="gaussian", noise=0.4)


def test_noise_may_be_a_parameter_that_is_sampled():
    """One output, y = 0: of each draw its own standard deviation."""

    class Regression(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.nn.Linear(1, 1)
            self.log_noise = torch.nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return self.mean(x)

    model = Regression()
    collector = Collector(model)
    for value in (0.0, 1.0):
        with torch.no_grad():
            model.log_noise.fill_(value)
        collector.step()
    seen: Any = collector.predict([torch.zeros(3, 1)], "gaussian", noise="log_noise")
    expected = torch.full((3, 1), math.sqrt((1 + math.exp(2)) / 2), dtype=torch.float64)
    torch.testing.assert_close(seen.standard_deviation, expected)
    with pytest.raises(ValueError, match="'noise' is no parameter of the model"):
        collector.predict([torch.zeros(3, 1)], "gaussian", noise="noise")


def test_links_must_be_right():
    outputs = numbers(3, 8, 1)
    with pytest.raises(ValueError, match=r'a softmax of one class is always 1\. Take "sigmoid"'):
        of_outputs(outputs, link="softmax")
    with pytest.raises(ValueError, match='link must be "softmax", "sigmoid", "gaussian"'):
        of_outputs(outputs, link="logistic")
    for given in ({"link": "gaussian"}, {"link": "sigmoid", "noise": 1.0}):
        with pytest.raises(TypeError, match=r"needs noise, .* has σ² = 1/2"):
            of_outputs(outputs, **given)
    with pytest.raises(ValueError, match="targets are not known"):
        of_outputs(outputs, link="sigmoid").nll()


def test_a_function_of_outputs_is_a_link():
    outputs = numbers(3, 8, 2).abs()
    seen = of_outputs(outputs, link=lambda out: out / out.sum(-1, keepdim=True))
    torch.testing.assert_close(
        seen.probabilities, (outputs / outputs.sum(-1, keepdim=True)).mean(0)
    )


def test_calibration_is_that_of_the_most_probable_class():
    """Of rows at 0.8, half are right: an error of 0.3; all at 0.6 are: one of 0.4."""
    p = torch.tensor([[0.8, 0.2]] * 4 + [[0.4, 0.6]] * 4)
    y = torch.tensor([0, 0, 1, 1, 1, 1, 1, 1])
    seen = of_outputs(p.log()[None], y, link="softmax")
    assert seen.calibration_error() == pytest.approx((0.3 + 0.4) / 2, abs=1e-6)
    as_yes = of_outputs(torch.logit(p[None, :, 1]), y, link="sigmoid")
    assert as_yes.calibration_error() == pytest.approx((0.3 + 0.4) / 2, abs=1e-6)


def test_batches_may_be_arguments_by_name():
    class ByName(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 3)
            self.dropout = torch.nn.Dropout(0.5)

        def forward(self, inputs, mask):
            return type("Output", (), {"logits": self.layer(self.dropout(inputs * mask))})()

    model = ByName()
    collector = Collector(model)
    collector.step()
    x, y = numbers(8, 2), torch.ones(8, dtype=torch.long)
    batch = {"inputs": x, "mask": torch.ones(8, 1), "labels": y}
    seen: Any = collector.predict([batch, batch], "softmax")
    assert model.training
    expected = torch.softmax(model.layer(x), -1).detach()  # without dropout
    torch.testing.assert_close(seen.probabilities, torch.cat([expected, expected]))
    assert torch.equal(seen.targets, torch.cat([y, y]))
    assert seen.nll() == pytest.approx(FUNCTIONAL.nll_loss(expected.log(), y).item(), rel=1e-5)


def test_the_loss_of_a_regression_has_a_stated_variance():
    """The mean over rows; MSELoss is the case of σ² = ½ with one output, up to a constant."""
    f, y = numbers(5, 2), numbers(5, 4)[:, 2:]
    expected = -stats.norm.logpdf(y, f, 0.3).sum(1).mean()
    assert gaussian_loss(f, y, 0.3).item() == pytest.approx(expected, rel=1e-5)
    f = f[:, :1].requires_grad_()
    losses = gaussian_loss(f, y[:, 0], 0.5**0.5), FUNCTIONAL.mse_loss(f, y[:, :1])
    torch.testing.assert_close(*(torch.autograd.grad(loss, f)[0] for loss in losses))
    with pytest.raises(ValueError, match="noise must be a positive"):
        gaussian_loss(f, y[:, 0], 0.0)
    with pytest.raises(ValueError, match="must have as many numbers"):
        gaussian_loss(f, y, 1.0)


def test_rows_without_a_target_do_not_count():
    """Tokens of padding have the target −100, as in torch's own cross entropy."""
    outputs, y = numbers(1, 4, 3), torch.tensor([0, 2, 1, 1])
    expected = of_outputs(outputs[:, :3], y[:3], link="softmax")
    seen = of_outputs(outputs, y.index_fill(0, torch.tensor([3]), -100), link="softmax")
    assert seen.nll() == pytest.approx(expected.nll())
    assert seen.calibration_error() == pytest.approx(expected.calibration_error())


@pytest.mark.parametrize("noise", [0.0, -1.0, math.nan])
def test_a_noise_that_is_no_standard_deviation_is_refused(noise):
    with pytest.raises(ValueError, match="noise must be positive and finite"):
        of_outputs(numbers(2, 5, 1), link="gaussian", noise=noise)


def test_batches_whose_targets_cannot_be_told_are_refused():
    with pytest.raises(ValueError, match=r"A batch has 3 parts, but must be \(inputs, targets\)"):
        parts((numbers(2), numbers(2), numbers(2)))
