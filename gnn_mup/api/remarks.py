"""What is said about a model as a whole: layers put in, weights that look trained, unused ones, a
forward pass that changes under a checkpoint."""

from __future__ import annotations

from math import prod

from torch import nn

from ..errors import TransferError
from ..rules.display import factor_text, fold_names
from ..rules.notes import Code, Note
from ..rules.plan import Plan
from .options import Options

MANY = 0.5
"""A larger share of the parameters than this, unused by the example, is worth a warning."""


def inserted(plan: Plan, options: Options) -> list[Note]:
    """That the architecture changed, unless ``residual="insert"`` asked for it."""
    if not plan.inserted or options.residual != "auto":
        return []
    times = factor_text(plan.branches[0].factor)
    return [
        Note(
            Code.INSERTED,
            f"the model has no residual connections, so x + branch{times} was put round its "
            "message-passing layers: the architecture changed. Pass residual='insert' to say so, "
            "or residual='scale' to leave it alone",
        )
    ]


def looks_trained(model: nn.Module, plan: Plan) -> list[Note]:
    """That weights are about to be rescaled which do not look freshly drawn."""
    if all(record.init_factor == 1.0 for record in plan.params.values()):
        return []
    graded = [name for name, p in model.named_parameters() if p.grad is not None]
    counted = [
        name
        for name, b in model.named_buffers()
        if name.rpartition(".")[2] == "num_batches_tracked" and b.numel() == 1 and int(b) > 0
    ]
    signs = [f"{', '.join(fold_names(graded)[:3])} have gradients"] * bool(graded)
    signs += [f"{', '.join(fold_names(counted)[:3])} have counted batches"] * bool(counted)
    if not signs:
        return []
    return [
        Note(
            Code.LOOKS_TRAINED,
            f"the model looks trained ({'; '.join(signs)}), and the rules rescale its weights as "
            "if they were freshly drawn. Pass init='keep' to keep them; or build the model anew "
            "and call apply_transfer before training",
        )
    ]


def unused(plan: Plan) -> tuple[list[Note], bool]:
    """Parameters that the traced pass did not read, and whether they are many."""
    names = [name for name, record in plan.params.items() if not record.used]
    if not names:
        return [], False
    sizes = {name: prod(record.shape) for name, record in plan.params.items()}
    share = sum(sizes[name] for name in names) / sum(sizes.values())
    if len(names) == len(sizes):
        raise TransferError(
            f"the forward call read none of the {len(names)} parameters ({', '.join(names[:3])}, "
            "...): pass as example what a training step passes, or set the mode that it runs in"
        )
    text = (
        f"not used in the traced forward pass: {', '.join(fold_names(names))}. They were placed by "
        "their shapes; if training uses them, pass an example (or set the mode) that does"
    )
    if share > MANY:
        text = f"{share:.0%} of the parameters are {text}"
    return [Note(Code.UNUSED_PARAMETERS, text)], share > MANY


def forward_changes(plan: Plan) -> list[Note]:
    """What a checkpoint's owner has to know where weights are kept and the forward pass is not."""
    changes = [
        f"{b.count} x {b.what} times {b.factor:.4g}" for b in plan.branches if b.factor != 1.0
    ]
    layers = sum(m.count for m in plan.messages if not m.normalised)
    if layers:
        changes.append(f"{layers} x message passing divided by gamma = {plan.gamma:.4g}")
    if not changes:
        return []
    params = fold_names(dict.fromkeys(name for fold in plan.folds for name in fold.params))
    kept = sorted({fold.reason for fold in plan.folds if fold.reason})
    back = f" into {', '.join(params)}" if params else ""
    rest = f" (all but what cannot be: {'; '.join(kept)})" if kept else " exactly"
    return [
        Note(
            Code.FORWARD_CHANGED,
            f"init='keep': the weights stay, the forward pass does not: {'; '.join(changes)}. A "
            "checkpoint that was trained without gnn_mup gives other outputs than before. "
            "Fine-tune it "
            "as it is; or call unfold_transfer(model), which brings its outputs "
            f"back{back}{rest}; or "
            "pass residual='off', gamma=None: then nothing but the learning rates changes",
        )
    ]


__all__ = ["forward_changes", "inserted", "looks_trained", "unused"]
