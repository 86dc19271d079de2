"""What holds for every model, asked of random ones: 200 in CI, as many as GNN_MUP_FUZZ says.

GNN_MUP_FUZZ=2000 pytest tests/test_fuzz.py
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bad_input import fingerprint
from fuzz_models import ADDS, LOOSE, WIDTH, WILD, Recipe, example, model_of, recipes, source
from hypothesis import HealthCheck, Phase, given, note, settings
from torch import Tensor, nn

from gnn_mup import Plan, TransferError, apply_transfer, plan_transfer, remove_transfer

EXAMPLES = int(os.environ.get("GNN_MUP_FUZZ", "200"))


def fuzz(share: float, adds: Any) -> Any:
    """A share of the examples, the same in every run; time limits mean nothing on a busy machine.

    Failures are not made smaller: that takes minutes, and the note has the model's source.
    """
    chosen = settings(
        max_examples=max(round(share * EXAMPLES), 5),
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    return lambda function: chosen(given(recipes(adds))(function))


def run(model: nn.Module, recipe: Recipe) -> Tensor:
    model.eval()
    taken = example(recipe)
    with torch.no_grad():
        out: Tensor = model(*taken) if isinstance(taken, tuple) else model(taken)
    return out


def planned(model: nn.Module, recipe: Recipe, **options: Any) -> Plan | None:
    """The plan, or None where the transfer was refused; nothing may have changed either way."""
    before = fingerprint(model)
    try:
        plan = plan_transfer(model, example(recipe), **{"base": "paper", **options})
    except TransferError as error:
        note(f"refused: {error}")
        plan = None
    after = fingerprint(model)
    assert [k for k in after if after[k] != before[k]] == []
    return plan


def transferred(model: nn.Module, recipe: Recipe, **options: Any) -> Plan | None:
    """The plan of a model that is transferred now; None, and as it was, where that was refused."""
    before = fingerprint(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            groups = apply_transfer(model, example(recipe), **{"base": "paper", **options})
        except TransferError:
            assert fingerprint(model) == before
            return None
    listed = [id(p) for group in groups for p in group["params"]]
    assert sorted(listed) == sorted(id(p) for p in model.parameters() if p.requires_grad)
    return groups.plan


def check_removal(model: nn.Module, recipe: Recipe, outputs: Tensor) -> None:
    remove_transfer(model)
    assert torch.equal(run(model, recipe), outputs)
    assert not [k for m in model.modules() for k in vars(m) if k.startswith("_gnn_mup")]


@fuzz(0.4, ADDS)
def test_residual_models(tmp_path_factory: Any, recipe: Recipe) -> None:
    """Understood, whatever they look like: L, roles and outputs are those written by hand."""
    folder = Path(tmp_path_factory.getbasetemp())
    text = source(recipe)
    note(text)
    model = model_of(text, folder)
    outputs = run(model, recipe)
    model.train()
    plan = planned(model, recipe, init="keep", gamma=None)
    assert plan is not None
    assert (plan.depth, plan.width, plan.inserted) == (recipe.depth, WIDTH, False)
    check_roles(plan, recipe)
    assert transferred(model, recipe, init="keep", gamma=None) == plan
    by_hand = model_of(source(recipe, 1 / recipe.depth), folder)
    torch.testing.assert_close(run(model, recipe), run(by_hand, recipe), rtol=1e-4, atol=1e-5)
    check_removal(model, recipe, outputs)


def check_roles(plan: Plan, recipe: Recipe) -> None:
    for name, record in plan.params.items():
        top = name.split(".")[0].split("_")[0]
        if not record.used or top in ("act", "drop"):
            continue
        if top in ("conv", "mlp", "updates") or (top == "blocks" and ".norm." not in name):
            assert record.role == "residual", name
        elif top == "enc":
            assert record.role == "encoder", name
        elif ("norm" in name) and recipe.depth > 1:
            assert record.role == ("stream" if recipe.norm == "post" else "residual"), name
        elif name == "dec.weight":
            assert (record.role, record.kind) == ("decoder", "width-out")


@fuzz(0.25, {**ADDS, **LOOSE})
def test_names_and_order_mean_nothing(tmp_path_factory: Any, recipe: Recipe) -> None:
    """The same model under other names, its layers made in another order: the same plan."""
    folder = Path(tmp_path_factory.getbasetemp())
    note(source(recipe))
    plan = planned(model_of(source(recipe), folder), recipe, gamma=None)
    renamed = source(recipe, name=_other_name, order=3)
    twin = planned(model_of(renamed, folder), recipe, gamma=None)
    assert (plan is None) == (twin is None)
    if plan is None or twin is None:
        return
    assert (plan.depth, plan.width, plan.inserted) == (twin.depth, twin.width, twin.inserted)
    assert sorted(map(_summary, plan.branches)) == sorted(map(_summary, twin.branches))
    assert _table(plan, _other_name) == _table(twin, str)


def _other_name(name: str) -> str:
    """A name that sorts elsewhere and says something else."""
    told = {"enc": "decoder", "dec": "a_first", "conv": "zz_norms", "norm": "bias"}
    return told.get(name, f"q{name}")


def _summary(branch: Any) -> tuple[Any, ...]:
    return (branch.factor, branch.what.split(" (")[0], branch.count, branch.mixes_nodes)


def _table(plan: Plan, rename: Any) -> dict[str, tuple[Any, ...]]:
    found = {}
    for name, r in plan.params.items():
        parts = []
        for part in name.split("."):
            stem, dash, number = part.rpartition("_")
            numbered = dash and number.isdigit()
            parts.append(f"{rename(stem)}_{number}" if numbered else _one(part, rename))
        found[".".join(parts)] = (r.role, r.kind, r.fan_in, r.branches, r.lr_scale, r.used, r.shape)
    return found


_RENAMED = ("enc", "dec", "conv", "norm", "mlp", "blocks", "last", "state", "updates")


def _one(part: str, rename: Any) -> str:
    return str(rename(part)) if part in _RENAMED else part


@fuzz(0.25, {**WILD, **LOOSE})
def test_strange_models_are_right_or_refused(tmp_path_factory: Any, recipe: Recipe) -> None:
    """Never anything but a `TransferError`; and where it is plain 1/L, right."""
    folder = Path(tmp_path_factory.getbasetemp())
    note(source(recipe))
    for options in ({"init": "keep", "gamma": None}, {"gamma": "auto", "optimizer": "sgd"}):
        model = model_of(source(recipe), folder)
        outputs = run(model, recipe)
        model.train()
        plan = planned(model, recipe, **options)
        if plan is None:
            assert transferred(model, recipe, **options) is None
            continue
        assert transferred(model, recipe, **options) == plan
        moved = run(model, recipe)
        assert torch.isfinite(moved).all()
        if "init" in options:
            if recipe.known:
                assert plan.depth == recipe.depth
                by_hand = model_of(source(recipe, 1 / recipe.depth), folder)
                torch.testing.assert_close(moved, run(by_hand, recipe), rtol=1e-4, atol=1e-5)
            check_removal(model, recipe, outputs)


@fuzz(0.1, ADDS)
def test_relative_to_a_base_of_another_depth(tmp_path_factory: Any, recipe: Recipe) -> None:
    """The base's own size is the identity; a deeper target gets the ratio of the depths."""
    folder = Path(tmp_path_factory.getbasetemp())
    shallow = replace(recipe, depth=3)
    note(source(recipe))
    base, delta = (model_of(source(shallow, width=w), folder) for w in (WIDTH, 2 * WIDTH))
    same = model_of(source(shallow), folder)
    outputs = run(same, shallow)
    plan = transferred(same.train(), shallow, base=base, delta=delta, residual="scale")
    assert plan is not None
    assert torch.equal(run(same, shallow), outputs)
    if recipe.depth > 3:
        model = model_of(source(recipe), folder)
        options = {"base": base, "delta": delta, "residual": "scale", "init": "keep"}
        found = transferred(model, recipe, **options)
        if found is None:  # layers are matched by their place in a list: here is none
            assert recipe.form in ("unrolled", "dict")
            return
        assert (found.depth, found.base_depth) == (recipe.depth, 3)
        by_hand = model_of(source(recipe, 3 / recipe.depth), folder)
        torch.testing.assert_close(run(model, recipe), run(by_hand, recipe), rtol=1e-4, atol=1e-5)
