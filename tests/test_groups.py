"""Parameter groups: a partition, merged, that optimizers and schedulers take as they are."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from equality import PlainGNN, placements
from torch import nn

from gnn_mup import NotApplied, StaleGroups, TransferError, clip_grad_norm_, transfer_groups
from gnn_mup.api.assemble import Frame, Placement, assemble
from gnn_mup.api.groups import PLAN_ATTRIBUTE, TransferGroups, build_groups, plain_name, plan_of
from gnn_mup.rules import table as rules
from gnn_mup.rules.optimizers import resolve_optimizer
from gnn_mup.rules.plan import Plan
from gnn_mup.rules.settings import Settings
from gnn_mup.rules.table import Kind, Role

WIDTH, DEPTH = 16, 3


def network(depth: int = DEPTH) -> PlainGNN:
    """A transferred model: it carries its plan, as `apply_transfer` leaves it."""
    torch.manual_seed(0)
    model = PlainGNN(5, WIDTH, depth, 2, factor=1 / depth)
    setattr(model, PLAN_ATTRIBUTE, plan_for(model))
    return model


def plan_for(model: PlainGNN, **settings: Any) -> Plan:
    frame = Frame(model.width, model.depth, rescale=False)
    return assemble(model, placements(model), frame, Settings(**{"lr": 0.1, **settings}))


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 5), torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])


def rate_of(groups: TransferGroups, parameter: nn.Parameter) -> float:
    (found,) = [g["lr"] for g in groups for p in g["params"] if p is parameter]
    return float(found)


# ---- partition ---------------------------------------------------------------------------------


def test_every_trainable_parameter_is_in_exactly_one_group() -> None:
    model = network()
    groups = transfer_groups(model)
    held = [id(p) for g in groups for p in g["params"]]
    assert len(held) == len(set(held))
    assert set(held) == {id(p) for p in model.parameters()}
    assert all({"params", "lr", "weight_decay", "name", "lr_scale"} <= set(g) for g in groups)
    assert {g["name"] for g in groups} == {"encoder", "residual", "decoder"}


def test_the_numbers_are_those_of_the_rules() -> None:
    model = network()
    groups = transfer_groups(model, lr=0.1, optimizer="adam")
    assert rate_of(groups, model.encoder.weight) == pytest.approx(0.1 / math.sqrt(5))
    assert rate_of(groups, model.ups[0].weight) == pytest.approx(0.1 / 16)
    assert rate_of(groups, model.downs[0].weight) == pytest.approx(0.1 / 32)
    assert rate_of(groups, model.decoder.weight) == pytest.approx(0.1 / 16)


def test_frozen_parameters_are_left_out_until_they_are_unfrozen() -> None:
    model = network()
    model.encoder.weight.requires_grad_(False)
    frozen = transfer_groups(model)
    assert "encoder" not in {g["name"] for g in frozen}
    model.encoder.weight.requires_grad_(True)
    assert "encoder" in {g["name"] for g in transfer_groups(model)}


def test_a_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(TransferError, match=r"frozen: model.requires_grad_\(True\) first"):
        transfer_groups(network().requires_grad_(False))


def test_a_shared_parameter_is_in_one_group_and_answers_to_both_names() -> None:
    model = PlainGNN(5, WIDTH, 2, 2)
    model.ups[1].weight = model.ups[0].weight
    places = placements(model)
    frame = Frame(WIDTH, 2, rescale=False)
    plan = assemble(model, places, frame, Settings(0.1, lr_mult={"ups.1": 3.0}))
    groups = build_groups(model, plan)
    assert plan.params["ups.0.weight"].aliases == ("ups.1.weight",)
    held = [id(p) for g in groups for p in g["params"]]
    assert held.count(id(model.ups[0].weight)) == 1
    assert rate_of(groups, model.ups[0].weight) == pytest.approx(3 * 0.1 / 16)


def test_groups_are_merged() -> None:
    deep = transfer_groups(network(depth=64))
    assert len(deep) == len(transfer_groups(network(depth=2))) == 4
    assert sum(len(g["params"]) for g in deep) == 3 * 64 + 2


def test_a_parameter_the_plan_does_not_know_is_named() -> None:
    model = network()
    model.added = nn.Linear(3, 3)
    with pytest.raises(TransferError, match=r"added\.weight, added\.bias.*apply_transfer"):
        transfer_groups(model)


# ---- settings ----------------------------------------------------------------------------------


def test_what_is_not_given_stays_as_it_was() -> None:
    model = network()
    setattr(model, PLAN_ATTRIBUTE, plan_for(model, optimizer=rules.ADAMW, weight_decay=0.5))
    groups = transfer_groups(model, lr=0.2)
    assert groups.plan.settings.lr == 0.2
    assert groups.plan.settings.optimizer == rules.ADAMW
    for group in groups:
        assert group["lr"] * group["weight_decay"] == pytest.approx(0.2 * 0.5)
    assert plan_of(model).settings.lr == 0.1, "the model's own plan is not touched"
    assert rate_of(transfer_groups(model, optimizer="sgd"), model.ups[0].weight) == pytest.approx(
        0.1 * DEPTH
    )


def test_epsilon_is_in_the_groups_only_when_asked_for() -> None:
    model = network()
    assert not any("eps" in g for g in transfer_groups(model))
    groups = transfer_groups(model, eps=1e-8)
    found = {g["name"]: g["eps"] for g in groups}
    assert found["encoder"] == pytest.approx(1e-8 / WIDTH)
    assert found["residual"] == pytest.approx(1e-8 / (WIDTH * DEPTH))
    assert found["decoder"] == pytest.approx(1e-8)
    assert {g["eps"] for g in torch.optim.Adam(groups).param_groups} == set(found.values())


def test_lr_mult_and_no_decay_take_patterns_of_names_and_modules() -> None:
    model = network()
    groups = transfer_groups(
        model,
        optimizer="adamw",
        weight_decay=0.1,
        lr_mult={"convs.1": 2.0, "convs.*.lin.weight": 5.0},
        no_decay=["decoder", "ups.*"],
    )
    plain = transfer_groups(model)
    assert rate_of(groups, model.convs[1].lin.weight) == pytest.approx(
        10 * rate_of(plain, model.convs[1].lin.weight)
    )
    assert rate_of(groups, model.convs[0].lin.weight) == pytest.approx(
        5 * rate_of(plain, model.convs[0].lin.weight)
    )
    decays = {id(p): g["weight_decay"] for g in groups for p in g["params"]}
    assert decays[id(model.decoder.weight)] == decays[id(model.ups[0].weight)] == 0
    assert decays[id(model.encoder.weight)] > 0


@pytest.mark.parametrize(
    "options", [{"lr_mult": {"conv.*": 2.0}}, {"no_decay": ["conv.*"]}], ids=["lr_mult", "no_decay"]
)
def test_a_pattern_that_matches_nothing_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(TransferError, match=r"'conv\.\*' matches no parameter.*convs\."):
        transfer_groups(network(), **options)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, True, "0.1", None])
@pytest.mark.parametrize("argument", ["lr", "weight_decay"])
def test_wrong_numbers_are_named(argument: str, value: Any) -> None:
    with pytest.raises(TransferError, match=f"{argument} must be"):
        Settings(**{argument: value})


def test_other_wrong_settings_are_named() -> None:
    with pytest.raises(TransferError, match=r"lr_mult\['a'\] must be"):
        Settings(lr_mult={"a": -1.0})
    with pytest.raises(TransferError, match="eps must be"):
        Settings(eps=-1e-8)
    with pytest.raises(TransferError, match=r"no_decay=\['bias'\]"):
        Settings(no_decay="bias")  # type: ignore[arg-type]
    with pytest.raises(TransferError, match="strings"):
        transfer_groups(network(), no_decay=[3])  # type: ignore[list-item]


def test_vectors_and_the_stream_do_not_decay_unless_told() -> None:
    model = nn.LayerNorm(WIDTH)
    places = {
        "weight": Placement(Kind.VECTOR, Role.STREAM, 1.0, fan_out_axes=(0,)),
        "bias": Placement(Kind.VECTOR, Role.HIDDEN, 1.0, fan_out_axes=(0,)),
    }
    frame = Frame(WIDTH, 4)

    def decays(**options: Any) -> dict[str, float]:
        settings = Settings(0.1, rules.ADAMW, weight_decay=0.5, **options)
        plan = assemble(model, places, frame, settings)
        return {name: record.weight_decay for name, record in plan.params.items()}

    assert decays() == {"weight": 0, "bias": 0}
    assert decays(no_decay=()) == {"weight": 0.5, "bias": pytest.approx(0.5 * 64)}


# ---- optimizers ---------------------------------------------------------------------------------


def test_optimizers_by_name() -> None:
    assert resolve_optimizer("SGD") == resolve_optimizer("sgd") == rules.SGD
    assert resolve_optimizer("adamw") == rules.ADAMW
    assert resolve_optimizer(rules.ADAM) == rules.ADAM


@pytest.mark.parametrize("wrong", ["lyon", dict, 3])
def test_what_is_no_optimizer_is_refused(wrong: Any) -> None:
    with pytest.raises(TransferError, match="neither a known name nor an optimizer class: type"):
        resolve_optimizer(wrong)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(*batch()).square().mean().backward()
    optimizer.step()


def test_state_dict_loads_into_a_fresh_optimizer() -> None:
    model = network()
    first = torch.optim.AdamW(transfer_groups(model, optimizer="adamw", weight_decay=0.1))
    step(model, first)
    twin = copy.deepcopy(model)
    second = torch.optim.AdamW(transfer_groups(twin, optimizer="adamw", lr=9.0))
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # else the moments are shared
    assert [g["lr"] for g in second.param_groups] == [g["lr"] for g in first.param_groups]
    torch.manual_seed(7)
    step(model, first)
    torch.manual_seed(7)
    step(twin, second)
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)


# ---- staleness, copies, wrappers ---------------------------------------------------------------


def test_groups_of_replaced_parameters_raise() -> None:
    model = network()
    groups = transfer_groups(model)
    model.encoder.weight = nn.Parameter(model.encoder.weight.detach().clone())
    with pytest.raises(StaleGroups, match=r"1 parameter of these.*transfer_groups\(model"):
        torch.optim.Adam(groups)
    with pytest.raises(StaleGroups):
        clip_grad_norm_(groups, 1.0)
    torch.optim.Adam(transfer_groups(model))


def test_groups_outlive_their_model() -> None:
    groups = transfer_groups(network())
    assert len(list(groups)) == 4


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda g: pickle.loads(pickle.dumps(g))])
def test_groups_and_plan_are_copied_and_pickled(twin: Any) -> None:
    groups = transfer_groups(network(), lr_mult={"ups.*": 2.0})
    again = twin(groups)
    assert isinstance(again, TransferGroups)
    assert again.plan == groups.plan
    assert again.plan is not groups.plan
    assert again.scaled(1.0) == groups.scaled(1.0)
    for a, b in zip(groups, again, strict=True):
        assert {k: v for k, v in a.items() if k != "params"} == {
            k: v for k, v in b.items() if k != "params"
        }
        for p, q in zip(a["params"], b["params"], strict=True):
            assert p is not q
            assert torch.equal(p, q)
    torch.optim.Adam(again)


def test_a_copied_model_carries_its_plan() -> None:
    model = network()
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert plan_of(twin) == plan_of(model)
    owned = {id(p) for p in twin.parameters()}
    assert all(id(p) in owned for g in transfer_groups(twin) for p in g["params"])


def test_a_model_without_a_plan_says_what_to_type() -> None:
    with pytest.raises(NotApplied, match=r"Linear carries no transfer.*apply_transfer"):
        transfer_groups(nn.Linear(2, 2))


@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compile"])
def test_wrappers_are_looked_through(wrap: Any) -> None:
    model = network()
    inner, outer = transfer_groups(model), transfer_groups(wrap(model))
    assert [g["lr"] for g in inner] == [g["lr"] for g in outer]
    assert [len(g["params"]) for g in inner] == [len(g["params"]) for g in outer]


def test_plain_names() -> None:
    assert plain_name("module._orig_mod.convs.0.weight") == "convs.0.weight"
    assert plain_name("convs.0._checkpoint_wrapped_module.lin.weight") == "convs.0.lin.weight"
    assert plain_name("head.module.weight") == "head.module.weight"


def test_clipping_without_gradients_or_with_a_wrong_threshold() -> None:
    groups = transfer_groups(network())
    assert clip_grad_norm_(groups, 1.0) == 0
    for wrong in (0, -1.0, math.nan):
        with pytest.raises(TransferError, match="max_norm must be positive"):
            clip_grad_norm_(groups, wrong)
