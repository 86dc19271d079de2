"""For GraphGym: an optimizer and a section of the config, registered when this is imported.

In the yaml file: ``optim: {optimizer: transfer}``, and optionally a section ``transfer`` with the
arguments of `apply_transfer` (``transfer: {optimizer: adamw, base: [64, 4]}``). In the script,
one line after ``create_model``:

>>> gnn_mup.graphgym.apply(model, loaders[0])                               # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from .api.groups import TransferGroups, origin_of_parameters, plan_of, transfer_groups
from .api.transfer import apply_transfer
from .errors import TransferError
from .extras import needs
from .rules.optimizers import name_of

needs("gnn_mup.graphgym", "yacs")

from torch_geometric.graphgym.config import cfg  # noqa: E402
from torch_geometric.graphgym.register import register_config, register_optimizer  # noqa: E402
from yacs.config import CfgNode  # noqa: E402

DEFAULTS: dict[str, Any] = {
    "optimizer": "adam",
    "base": None,
    "residual": "auto",
    "gamma": None,
    "eps": None,
}
"""The section ``transfer`` of a config, as `apply_transfer` takes them; None: not given."""


def set_transfer_config(config: Any) -> None:
    """Add the section ``transfer`` to a config; GraphGym's `set_cfg` calls it."""
    config.transfer = CfgNode(dict(DEFAULTS))
    config.transfer.multipliers = CfgNode(new_allowed=True)


def _arguments(section: Any) -> dict[str, Any]:
    """The section as arguments of `apply_transfer`: ``base: [64, 4]`` is a reference size."""
    given = {key: value for key, value in section.items() if value not in (None, "")}
    given["multipliers"] = dict(section.get("multipliers", {}))
    if isinstance(given.get("base"), list):
        given["base"] = tuple(given["base"])
    return given


def apply(model: nn.Module, example: Any = None) -> TransferGroups:
    """`apply_transfer` on what `create_model` returned, with the numbers of the config.

    ``example``: a loader or a batch. The learning rate is ``optim.base_lr``, the weight decay
    ``optim.weight_decay``.
    """
    if "transfer" not in cfg:
        set_transfer_config(cfg)
    network = getattr(model, "model", model)  # create_model puts a LightningModule round it
    lr, decay = cfg.optim.base_lr, cfg.optim.weight_decay
    return apply_transfer(network, example, lr=lr, weight_decay=decay, **_arguments(cfg.transfer))


def transfer_optimizer(
    params: Iterable[nn.Parameter], base_lr: float, weight_decay: float, momentum: float
) -> Optimizer:
    """What ``optim.optimizer: transfer`` makes: the checked and watched optimizer of the groups."""
    origin = origin_of_parameters(params)
    model = None if origin is None else origin.model()
    if model is None:
        raise TransferError(
            "optim.optimizer is 'transfer', and the model carries no transfer. Type, after "
            "create_model: gnn_mup.graphgym.apply(model, loaders[0])"
        )
    name = name_of(plan_of(model).settings.optimizer)
    options = {"momentum": momentum} if name == "sgd" else {}
    groups = transfer_groups(model, lr=base_lr, weight_decay=weight_decay)
    return groups.optimizer(name, **options)


register_config("transfer", set_transfer_config)
register_optimizer("transfer", transfer_optimizer)

__all__ = ["DEFAULTS", "apply", "set_transfer_config", "transfer_optimizer"]
