# ruff: noqa: E402
"""Real runs of Lightning, accelerate and Hugging Face's Trainer: `make test-trainers`."""

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch.utils.data import DataLoader, TensorDataset

from sghmc.torch import SGHMC, Collector, GaussianPrior
from sghmc.torch.trainers import lightning_callback, transformers_callback
from torch_cases import data, flat, make, network

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
GIVEN: dict[str, Any] = {"num_data": 40, "prior": GaussianPrior(2.0), "seed": 3}
FUNCTIONAL = torch.nn.functional


def reference(num_steps: int, every: int, accumulate: int = 1):
    """The same chain in a loop of our own, with all rows in every batch."""
    model, (x, y) = network(), data()
    sampler = SGHMC(model.parameters(), 0.02, friction=5.0, **GIVEN)
    collector = Collector(model, sampler, every=every)
    for _ in range(num_steps):
        sampler.zero_grad()
        FUNCTIONAL.cross_entropy(model(x), y).backward()
        sampler.step()
        collector.step()
    return collector


def check(collector: Any, expected: Collector, prefix: str = "") -> None:
    draws = collector.samples().positions
    for name, array in expected.samples().positions.items():
        np.testing.assert_allclose(draws[prefix + name], array, rtol=1e-4, atol=1e-6)


def lightning_module():
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            return FUNCTIONAL.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self):
            return SGHMC(self.parameters(), 0.02, friction=5.0, **GIVEN)

    return Module()


def lightning_trainer(folder, epochs: int, **given):
    import lightning.pytorch as pl

    return pl.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, default_root_dir=folder,
        enable_progress_bar=False, enable_model_summary=False, **given,
    )  # fmt: skip


def test_lightning_collects_resumes_and_predicts(tmp_path):
    pytest.importorskip("lightning")
    loader = DataLoader(TensorDataset(*data()), batch_size=40)
    callback = lightning_callback(every=2)
    trainer = lightning_trainer(tmp_path, 4, callbacks=[callback])
    trainer.fit(lightning_module(), loader)
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    again, module = lightning_callback(every=2), lightning_module()
    trainer = lightning_trainer(tmp_path, 8, callbacks=[again])
    trainer.fit(module, loader, ckpt_path=str(tmp_path / "half.ckpt"), weights_only=False)
    expected = reference(8, 2)
    check(again.collector, expected, "net.")
    seen = again.collector.predict(loader, "softmax").probabilities
    torch.testing.assert_close(seen, expected.predict(loader, "softmax").probabilities)


def test_lightning_with_accumulated_batches_and_clipping(tmp_path):
    pytest.importorskip("lightning")
    loader = DataLoader(TensorDataset(*data()), batch_size=20)
    callback = lightning_callback(every=2)
    lightning_trainer(tmp_path, 4, callbacks=[callback], accumulate_grad_batches=2).fit(
        lightning_module(), loader
    )
    check(callback.collector, reference(4, 2), "net.")
    trainer = lightning_trainer(
        tmp_path, 1, callbacks=[lightning_callback()], gradient_clip_val=1.0
    )
    with pytest.raises(ValueError, match="clips gradients at 1"):
        trainer.fit(lightning_module(), loader)


def test_accelerate_prepares_and_resumes(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    x, y = data()

    def prepared() -> Any:
        model = network()
        model, sampler = accelerator.prepare(model, make("sghmc", model))
        return model, sampler, Collector(model, sampler)

    def steps(model, sampler, collector, count):
        for _ in range(count):
            sampler.zero_grad()
            accelerator.backward(FUNCTIONAL.cross_entropy(model(x), y))
            sampler.step()
            collector.step()

    model, sampler, collector = prepared()
    steps(model, sampler, collector, 2)
    accelerator.save_state(str(tmp_path))
    steps(model, sampler, collector, 2)
    assert collector.num_draws == 4
    check(collector, reference(4, 1))
    went_on = flat(model)
    accelerator.load_state(str(tmp_path))
    steps(model, sampler, collector, 2)
    assert torch.equal(flat(model), went_on)


class Classifier(torch.nn.Module):
    """What Hugging Face's Trainer trains: arguments by name, and a loss among the outputs."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, inputs, labels=None):
        logits = self.net(inputs)
        if labels is None:
            return {"logits": logits}
        return {"loss": FUNCTIONAL.cross_entropy(logits, labels), "logits": logits}


def transformers_trainer(folder, callback, epochs: int, **given):
    from transformers import Trainer, TrainingArguments

    x, y = data()
    rows = [{"inputs": x[i], "labels": y[i]} for i in range(len(y))]
    settings = {"max_grad_norm": 0.0, "lr_scheduler_type": "constant", **given}
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=epochs, per_device_train_batch_size=40,
        use_cpu=True, report_to=[], disable_tqdm=True, save_steps=4, logging_strategy="no",
        **settings,
    )  # fmt: skip
    model = Classifier()
    sampler = SGHMC(model.parameters(), 0.02, friction=5.0, **GIVEN)
    return Trainer(
        model, arguments, train_dataset=rows, optimizers=(sampler, None), callbacks=[callback]
    )


def test_hugging_face_collects_resumes_and_predicts(tmp_path):
    pytest.importorskip("transformers")
    transformers_trainer(tmp_path, transformers_callback(every=2), 4).train()
    again = transformers_callback(every=2)
    trainer = transformers_trainer(tmp_path, again, 8)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    expected = reference(8, 2)
    check(again.collector, expected, "net.")
    x, y = data()
    seen = again.collector.predict([{"inputs": x, "labels": y}], "softmax")
    torch.testing.assert_close(seen.probabilities, expected.predict([x], "softmax").probabilities)
    assert 0 < seen.nll() < 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_grad_norm": 1.0}, r"clips gradients at 1, .*max_grad_norm=0\.0"),
        ({"lr_scheduler_type": "linear"}, 'give lr_scheduler_type="constant"'),
    ],
)
def test_the_defaults_of_hugging_face_are_refused(given, message, tmp_path):
    pytest.importorskip("transformers")
    trainer = transformers_trainer(tmp_path, transformers_callback(), 1, **given)
    with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
        trainer.train()


def test_a_checkpoint_without_draws_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers_trainer(tmp_path, transformers.TrainerCallback(), 4).train()
    trainer = transformers_trainer(tmp_path, transformers_callback(), 8)
    with pytest.raises(FileNotFoundError, match="that was saved with this callback"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
