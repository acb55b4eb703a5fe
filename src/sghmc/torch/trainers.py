"""Callbacks that collect draws in trainers of other libraries, and resume with them.

Each library is imported where its callback is made.
"""

import pathlib
from collections.abc import Sized
from typing import Any

import torch

from sghmc.torch.base import Sampler, unwrapped
from sghmc.torch.collector import Collector

_FILE = "sghmc_draws.pt"


class DrawsOfTrainer:
    """Base of both callbacks: a `Collector` from the beginning of training, and its state.

    `collector` is None before training begins.
    """

    def __init__(self, given: dict[str, Any]):
        self.collector: Collector | None = None
        self._given = given
        self._saved: dict[str, Any] | None = None

    def begin(self, model: torch.nn.Module, optimizers: list[Any], loader: Any, clip: Any) -> None:
        """Make the collector once the trainer has made everything else, and check all of it."""
        sampler = unwrapped(optimizers[0]) if len(optimizers) == 1 else None
        if not isinstance(sampler, Sampler):
            raise TypeError(
                f"The trainer must have one optimizer, a sampler of sghmc.torch, but has "
                f"{[type(unwrapped(each)).__name__ for each in optimizers]}."
            )
        if clip:
            raise ValueError(
                f"The trainer clips gradients at {clip:g}, which would sample another posterior: "
                f"switch that off (Lightning: gradient_clip_val=None, Hugging Face: "
                f"max_grad_norm=0.0). Where the chain diverges, take a smaller step size."
            )
        num_rows = len(loader.dataset) if isinstance(getattr(loader, "dataset", None), Sized) else 0
        if num_rows and isinstance(loader, Sized) and sampler.num_data == len(loader) != num_rows:
            raise ValueError(
                f"num_data={sampler.num_data} is the number of batches, but must be that of rows: "
                f"give num_data={num_rows}, len(dataset)."
            )
        self.collector = Collector(model, sampler, **self._given)
        if self._saved is not None:
            self.collector.load_state_dict(self._saved)
            self._saved = None

    def step(self, loss: Any = None) -> None:
        """Count the sampler's steps after a batch, of which there may be none."""
        assert self.collector is not None
        self.collector.step(loss)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.collector is None else self.collector.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there when training begins."""
        self._saved = state_dict or None


def lightning_callback(**given: Any) -> Any:
    """Return a callback of Lightning's `Trainer` that collects draws and resumes with them.

    Arguments are those of `Collector` after the sampler, which `configure_optimizers` returns.
    After `fit`, `callback.collector` has `samples()` and `predict(loader, link)`, for which the
    module's `forward` takes what a batch has first. Checkpoints of the trainer have the draws.

        callback = lightning_callback(every=10, burnin=1000)
        lightning.Trainer(max_epochs=50, callbacks=[callback]).fit(module, loader)
        callback.collector.predict(test_loader, "softmax")
    """
    import lightning.pytorch as pl

    class Callback(DrawsOfTrainer, pl.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            clip, loader = trainer.gradient_clip_val, trainer.train_dataloader
            self.begin(pl_module, trainer.optimizers, loader, clip)

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
            self.step(loss if trainer.accumulate_grad_batches == 1 else None)

    return Callback(given)


def transformers_callback(**given: Any) -> Any:
    """Return a callback of Hugging Face's `Trainer` that collects draws and resumes with them.

    Arguments are those of `Collector` after the sampler, which the trainer is given by
    `optimizers=(sampler, None)`. Its defaults clip gradients and let the step size fall to 0:
    `max_grad_norm=0.0` and `lr_scheduler_type="constant"` are asked for. After `train`,
    `callback.collector` has `samples()` and `predict(loader, link)`. The draws are in the folder
    of each checkpoint, and are read from it when training is resumed.

        callback = transformers_callback(every=10, burnin=1000)
        Trainer(model, args, train_dataset=data, optimizers=(sampler, None), callbacks=[callback])
    """
    import transformers

    class Callback(DrawsOfTrainer, transformers.TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            is_made_here = isinstance(given["lr_scheduler"], torch.optim.lr_scheduler.LambdaLR)
            if is_made_here and args.lr_scheduler_type == "linear":
                raise ValueError(
                    'The trainer lets the step size fall to 0: give lr_scheduler_type="constant", '
                    "or a scheduler of your own."
                )
            if state.global_step:
                file = _checkpoint(args, state) / _FILE
                if not file.exists():
                    raise FileNotFoundError(
                        f"{file} is not there: a run is resumed from a checkpoint in output_dir "
                        f"that was saved with this callback. To collect from another checkpoint "
                        f"on, load the model's weights alone, and begin a new run."
                    )
                self.load_state_dict(torch.load(file, weights_only=True))
            loader = given["train_dataloader"]
            self.begin(given["model"], [given["optimizer"]], loader, args.max_grad_norm)

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            self.step()

        def on_save(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.is_world_process_zero:
                torch.save(self.state_dict(), _checkpoint(args, state) / _FILE)

    return Callback(given)


def _checkpoint(args: Any, state: Any) -> pathlib.Path:
    return pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"
