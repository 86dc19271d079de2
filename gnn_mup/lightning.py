"""For Lightning: a mixin for the module, and a callback that watches, logs and checks checkpoints.

>>> class Module(TransferMixin, lightning.LightningModule):                 # doctest: +SKIP
...     def __init__(self, model, example):
...         super().__init__()
...         self.model = model
...         self.apply_transfer(model, example, lr=1e-3, optimizer="adamw")
>>> trainer = lightning.Trainer(callbacks=[TransferCallback()], gradient_clip_val=1.0)
...                                                                         # doctest: +SKIP
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .api.checkpoint import compare_factors, factors_of
from .api.groups import TransferGroups, plan_of, transfer_groups, transferred_part
from .api.rates import clip_grad_norm_, group_rates
from .api.transfer import apply_transfer
from .api.watch import watch
from .errors import TransferError, TransferWarning
from .extras import needs
from .rules.optimizers import name_of

_KEY = "gnn_mup_factors"


def _lightning() -> Any:
    """The Lightning that is in use: `lightning` or the older `pytorch_lightning`."""
    packages = ("lightning.pytorch", "pytorch_lightning")
    for name in packages:
        if name in sys.modules:
            return sys.modules[name]
    for name in packages:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    needs("gnn_mup.lightning", "lightning")
    raise TransferError("Lightning cannot be imported: pip install 'gnn_mup[lightning]'")


_Callback: Any = _lightning().Callback


class TransferMixin:
    """Put it before `LightningModule`: the module's optimizer and clipping then transfer.

    `configure_optimizers` makes the optimizer that the transfer was told of. For options or a
    schedule write it yourself with `transfer_optimizer`:

    >>> def configure_optimizers(self):                                     # doctest: +SKIP
    ...     optimizer = self.transfer_optimizer(torch.optim.AdamW, betas=(0.9, 0.95))
    ...     return [optimizer], [CosineAnnealingLR(optimizer, T_max=100)]
    """

    def apply_transfer(
        self, model: nn.Module, example: Any = None, **arguments: Any
    ) -> TransferGroups:
        """`gnn_mup.apply_transfer` on a part of this module, the network itself."""
        return apply_transfer(model, example, **arguments)

    def transfer_optimizer(self, which: str | type[Optimizer], **options: Any) -> Optimizer:
        """The optimizer of the transferred part, checked and watched (`groups.optimizer`).

        Its groups get names of their own, since Lightning's `LearningRateMonitor` refuses several
        groups of one name.
        """
        optimizer = transfer_groups(transferred_part(self)).optimizer(which, **options)
        for group, name in zip(optimizer.param_groups, group_rates(optimizer), strict=True):
            group["name"] = name.removeprefix("lr/")
        return optimizer

    def configure_optimizers(self) -> Any:
        return self.transfer_optimizer(name_of(plan_of(self).settings.optimizer))  # type: ignore[arg-type]

    def configure_gradient_clipping(
        self,
        optimizer: Any,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clips by the norm that transfers (`gnn_mup.clip_grad_norm_`)."""
        if not gradient_clip_val:
            return
        if gradient_clip_algorithm not in (None, "norm"):
            raise TransferError(
                f"gradient_clip_algorithm={str(gradient_clip_algorithm)!r} does not transfer: "
                "gradients of larger models are smaller. Type: gradient_clip_algorithm='norm'"
            )
        clip_grad_norm_(optimizer.param_groups, gradient_clip_val)

    def on_train_start(self) -> None:
        """Refuse Lightning's learning rate finder, which sets one number for all groups."""
        after = getattr(super(), "on_train_start", None)
        trainer = getattr(self, "trainer", None)
        if any(type(c).__name__ == "_LRCallback" for c in getattr(trainer, "callbacks", ())):
            raise TransferError(
                "Tuner.lr_find sets one learning rate for all groups, which undoes the transfer. "
                "Type: gnn_mup.lr_find(optimizer, closure)"
            )
        if after is not None:
            after()


class TransferCallback(_Callback):  # type: ignore[misc]
    """Watches the optimizers, logs the learning rate of each group, and checks checkpoints.

    ``log_rates``: send `gnn_mup.group_rates` to the trainer's loggers every `log_every_n_steps`.
    """

    def __init__(self, log_rates: bool = True) -> None:
        super().__init__()
        self.log_rates = log_rates

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        for optimizer in trainer.optimizers:
            watch(optimizer)
        plain = _lightning().LightningModule.configure_gradient_clipping
        clips = getattr(type(pl_module), "configure_gradient_clipping", plain)
        if trainer.gradient_clip_val and clips is plain:
            warnings.warn(
                "gradient_clip_val clips by the plain global norm, which does not transfer. Type: "
                f"class {type(pl_module).__name__}(TransferMixin, LightningModule)",
                TransferWarning,
                stacklevel=2,
            )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        if self.log_rates and trainer.global_step % trainer.log_every_n_steps == 0:
            for optimizer in trainer.optimizers:
                for logger in trainer.loggers:
                    logger.log_metrics(group_rates(optimizer), step=trainer.global_step)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint[_KEY] = factors_of(pl_module)

    def on_load_checkpoint(
        self, trainer: Any, pl_module: Any, checkpoint: Mapping[str, Any]
    ) -> None:
        compare_factors(pl_module, checkpoint.get(_KEY, {}), "the checkpoint")


__all__ = ["TransferCallback", "TransferMixin"]
