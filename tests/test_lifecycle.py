"""What happens to a model after its transfer: drawn anew, copied, averaged, frozen, extended."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stack_model import CALL, Net, loss_of, losses, pair
from torch import nn
from torch_geometric.nn import GCNConv, GINConv

from gnn_mup import (
    StaleGroups,
    TransferError,
    TransferWarning,
    apply_transfer,
    clip_grad_norm_,
    fold_transfer,
    load,
    remove_transfer,
    save,
    transfer_groups,
)


class Resettable(Net):
    """With a ``reset_parameters`` of its own that calls those of its layers, as PyG's models do."""

    def reset_parameters(self) -> None:
        for module in (self.encoder, *self.convs, *self.mixers, *self.norms, self.decoder):
            module.reset_parameters()


def scales(model: nn.Module) -> dict[str, float]:
    return {n: float(p.detach().square().mean().sqrt()) for n, p in model.named_parameters()}


# ---- drawn anew ----------------------------------------------------------------------------------


def by_layer(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "reset_parameters") and module is not model:
            module.reset_parameters()


def by_apply(model: Any) -> None:
    model.apply(lambda m: m.reset_parameters() if hasattr(m, "reset_parameters") else None)


RESETS: dict[str, Callable[[Any], None]] = {
    "model": lambda model: model.reset_parameters(),
    "layers": by_layer,
    "apply": by_apply,
    "twice": lambda model: (model.reset_parameters(), model.reset_parameters()),  # type: ignore[dict-item]
}
COPIES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda model: model,
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("reset", RESETS)
def test_initial_scales_survive_a_reset(reset: str, copied: str) -> None:
    original = Resettable(width=64)
    plan = apply_transfer(original, CALL, base="paper").plan
    untouched = copy.deepcopy(original.state_dict())
    model = COPIES[copied](original)
    RESETS[reset](model)
    redrawn = [n for n, p in model.named_parameters() if not torch.equal(p, untouched[n])]
    matrices = [n for n, r in plan.params.items() if r.init_factor != 1.0]
    assert set(matrices) <= set(redrawn)
    found = scales(model)
    for name in matrices:
        assert found[name] == pytest.approx(plan.params[name].init_after, rel=1e-3), name
    if copied != "itself":  # a copy resets itself, never the model it came from
        assert all(torch.equal(v, untouched[k]) for k, v in original.state_dict().items())


def test_a_reset_model_trains_and_is_removed_like_a_fresh_one() -> None:
    model = Resettable(width=64)
    before = scales(model)
    groups = apply_transfer(model, CALL, base="paper")
    model.reset_parameters()
    found = losses(model, groups)
    assert found[-1] < found[0]
    model.reset_parameters()
    remove_transfer(model)
    weights = {n: s for n, s in scales(model).items() if "norm" not in n and n.endswith("weight")}
    assert weights == pytest.approx({n: before[n] for n in weights}, rel=0.05)
    assert "reset_parameters" not in vars(model.encoder)
    model.reset_parameters()
    assert scales(model)["decoder.weight"] == pytest.approx(before["decoder.weight"], rel=0.2)


def test_a_reset_after_folding_keeps_what_was_baked_in() -> None:
    torch.manual_seed(0)
    model = Resettable(width=64)
    apply_transfer(model, CALL, base="paper")
    report = fold_transfer(model)
    assert report.kept, "a branch that ends in a GELU cannot be folded: the transfer stays"
    before = scales(model)
    model.reset_parameters()
    after = scales(model)
    for name in ("convs.0.nn.weight", "mixers.0.lin.weight", "decoder.weight"):
        assert after[name] == pytest.approx(before[name], rel=1e-3)


def test_kept_weights_are_drawn_at_their_own_scale_with_a_warning() -> None:
    model = Resettable()
    apply_transfer(model, CALL, base="paper", init="keep")
    with pytest.warns(TransferWarning, match=r'Resettable was drawn anew.*init="keep"'):
        model.reset_parameters()


def test_a_layer_taken_out_and_drawn_anew_warns() -> None:
    model = pair()[0]
    part = copy.deepcopy(model.encoder)
    with pytest.warns(TransferWarning, match=r"Linear was copied out.*to_hetero first"):
        part.reset_parameters()
    with pytest.raises(TransferError, match=r"0 was copied out of a transferred model"):
        apply_transfer(nn.Sequential(part), (CALL[0],), base="paper")


# ---- changed -------------------------------------------------------------------------------------


def test_layers_added_later_are_named() -> None:
    model, groups, _, _ = pair()
    model.head = nn.Linear(3, 3)
    message = r"does not know head\.weight, head\.bias.*remove_transfer"
    for use in (
        lambda: transfer_groups(model),
        groups.check,
        lambda: torch.optim.Adam(groups),
        lambda: clip_grad_norm_(groups, 1.0),
    ):
        with pytest.raises(TransferError, match=message):
            use()
    del model.head
    torch.optim.Adam(groups)
    model.convs.append(GINConv(nn.Linear(16, 16)))
    with pytest.raises(TransferError, match=r"convs\.3\.nn\.weight"):
        transfer_groups(model)


def test_a_layer_put_in_the_place_of_another_makes_groups_stale() -> None:
    model, groups, _, _ = pair()
    model.mixers[0] = GCNConv(16, 16)
    with pytest.raises(StaleGroups, match="2 parameters"):
        torch.optim.Adam(groups)


def test_unfreezing_needs_new_groups() -> None:
    model = Net()
    model.encoder.requires_grad_(False)
    groups = apply_transfer(model, CALL, base="paper")
    names = {g["name"] for g in groups}
    model.encoder.requires_grad_(True)
    assert {g["name"] for g in transfer_groups(model)} - names == {"encoder"}


def test_a_frozen_layer_stays_as_it_is_while_the_rest_trains() -> None:
    model = pair()[0]
    before = copy.deepcopy(model.state_dict())
    model.convs[1].requires_grad_(False)
    found = losses(model, transfer_groups(model))
    assert found[-1] < found[0]
    moved = {n for n, v in model.state_dict().items() if not torch.equal(v, before[n])}
    assert not {n for n in moved if n.startswith("convs.1.")}
    assert {"encoder.weight", "convs.0.nn.weight", "decoder.weight"} <= moved


# ---- copied, averaged, called with other weights ---------------------------------------------


def test_functional_call() -> None:
    model, _, twin, twin_groups = pair()
    losses(twin, twin_groups, 2)
    trained = {k: v.detach() for k, v in twin.named_parameters()}
    outputs = torch.func.functional_call(model, trained, CALL)
    torch.testing.assert_close(outputs, twin(*CALL))
    gradients = torch.func.grad(lambda p: torch.func.functional_call(model, p, CALL).sum())(trained)
    twin.zero_grad()
    twin(*CALL).sum().backward()
    torch.testing.assert_close(gradients["encoder.weight"], twin.encoder.weight.grad)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averages(kind: str) -> None:
    ema = torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    model, groups, _, _ = pair()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=ema if kind == "ema" else None
    )
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    average.update_parameters(model)
    losses(model, groups, 2)
    average.update_parameters(model)
    for name, parameter in average.module.named_parameters():
        middle = (before[name] + dict(model.named_parameters())[name].detach()) / 2
        torch.testing.assert_close(parameter.detach(), middle)
    by_hand = copy.deepcopy(model)
    by_hand.load_state_dict(average.module.state_dict())
    torch.testing.assert_close(average(*CALL), by_hand(*CALL))
    assert len(transfer_groups(average)) == len(groups)


def test_whole_models_are_saved_and_loaded() -> None:
    model = pair()[0].eval()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(*CALL), model(*CALL))


def test_a_layer_is_saved_without_the_model_around_it() -> None:
    model = pair(width=64)[0]
    assert len(pickle.dumps(model.encoder)) < len(pickle.dumps(model)) / 10
    loss_of(model).backward()


# ---- saved and loaded ----------------------------------------------------------------------------


class ByHand(nn.Module):
    """Messages summed in forward itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 16)
        self.mixers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.decoder = nn.Linear(16, 3)

    def forward(self, x: Any, edge_index: Any, batch: Any) -> Any:
        x = self.encoder(x)
        for mixer in self.mixers:
            x = x + torch.zeros_like(x).index_add_(0, edge_index[1], mixer(x)[edge_index[0]]).relu()
        return self.decoder(x)


def built(build: type[nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = build()
    apply_transfer(model, CALL, base="paper")
    return model


def by_torch(model: nn.Module, other: nn.Module, path: Any) -> None:
    torch.save(model.state_dict(), path)
    other.load_state_dict(torch.load(path, weights_only=True))


def by_us(model: nn.Module, other: nn.Module, path: Any) -> None:
    save(model, path)
    load(other, path)


@pytest.mark.parametrize("way", [by_torch, by_us])
@pytest.mark.parametrize("build", [Net, ByHand])
def test_gamma_comes_along_with_the_weights(
    build: type[nn.Module], way: Any, tmp_path: Any
) -> None:
    """Each model measures its own; what a checkpoint was trained with goes before it."""
    model, other = built(build, 0), built(build, 1)
    here, there = transfer_groups(model).plan, transfer_groups(other).plan
    assert abs(here.gamma / there.gamma - 1) > 0.01
    keys = list(other.state_dict())
    way(model, other, tmp_path / "weights.pt")
    assert list(other.state_dict()) == keys
    assert transfer_groups(other).plan.gamma == here.gamma
    assert transfer_groups(copy.deepcopy(other)).plan.gamma == here.gamma
    assert torch.equal(other(*CALL), model(*CALL))
    fold_transfer(other)
    torch.testing.assert_close(other(*CALL), model(*CALL))


def test_an_untouched_model_takes_the_weights_alone() -> None:
    model, plain = built(Net, 0), Net()
    plain.load_state_dict(model.state_dict())
    assert not [k for m in plain.modules() for k in vars(m) if k.startswith("_gnn_mup")]
    again = built(Net, 1)
    gamma = transfer_groups(again).plan.gamma
    again.load_state_dict(plain.state_dict())
    assert transfer_groups(again).plan.gamma == gamma
