"""Bad input of every public function but `apply_transfer`: a `TransferError` with a remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bad_input import EDGES, INF, NAN, NONE, Net, X, moved, own, refused
from test_bad_studies import STUDIES
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GINConv

import gnn_mup
from gnn_mup import (
    MuonAdamW,
    Weight,
    apply_transfer,
    attach_infshapes,
    clip_grad_norm_,
    describes,
    family_of,
    fold_transfer,
    group_rates,
    load,
    load_base_shapes,
    lr_find,
    make_base_shapes,
    measure_correction,
    measure_gamma,
    plan_transfer,
    remove_transfer,
    save,
    save_base_shapes,
    set_lr,
    tau_epoch,
    transfer_groups,
    unfold_transfer,
    watch,
    weight_decay_from_tau,
)
from gnn_mup.nn import TransferGNN
from gnn_mup.transforms import NormalizeRows

Call = Callable[[Path], Any]
PAPER = TransferGNN(5, 8, 2, 3)

FUNCTIONS: dict[str, tuple[Call, str]] = {
    "remove_transfer, no model": (lambda _: remove_transfer("x"), "not str. Pass the model"),
    "remove_transfer, a class": (lambda _: remove_transfer(Net), "Net is a class"),
    "remove_transfer, not applied": (lambda _: remove_transfer(Net()), "carries no transfer. Type"),
    "remove_transfer, a wrapper": (
        lambda _: remove_transfer(nn.Sequential(moved())),
            r"remove_transfer\(model.get_submodule\('0'\)"),
    "fold_transfer, no model": (lambda _: fold_transfer(None), "not NoneType"),
    "fold_transfer, not applied": (lambda _: fold_transfer(Net()), "carries no transfer. Type"),
    "fold_transfer, a wrapper": (
        lambda _: fold_transfer(nn.Sequential(moved())), r"fold_transfer\(model.get_submodule"),
    "unfold_transfer, no model": (lambda _: unfold_transfer(None), "not NoneType"),
    "unfold_transfer, not applied": (lambda _: unfold_transfer(Net()), "carries no transfer. Type"),
    "unfold_transfer, a wrapper": (
        lambda _: unfold_transfer(nn.Sequential(moved())), r"unfold_transfer\(model.get_submodule"),
    "set_lr, no optimizer": (lambda _: set_lr(None, 0.1), "groups of a transfer: Adam"),
    "set_lr, other groups": (
        lambda _: set_lr(torch.optim.Adam(Net().parameters()), 0.1), "a group without lr_scale"),
    "set_lr, NaN": (lambda _: set_lr(adam(), NAN), "lr must be a finite number"),
    "set_lr, text": (lambda _: set_lr(adam(), "0.1"), "lr must be a finite number"),
    "transfer_groups, no model": (lambda _: transfer_groups(3), "not int"),
    "transfer_groups, not applied": (lambda _: transfer_groups(Net()), "carries no transfer. Type"),
    "transfer_groups, frozen": (
        lambda _: transfer_groups(moved().requires_grad_(False)), r"requires_grad_\(True\)"),
    "make_base_shapes, no base": (lambda _: make_base_shapes("x", Net()), "not str"),
    "make_base_shapes, no delta": (
        lambda _: make_base_shapes(Net(), None, example=(X, EDGES)),
        r"not NoneType.*make_base_shapes\(build\(64\), build\(96\)\)"),
    "make_base_shapes, no file": (
        lambda _: make_base_shapes(Net(4), Net(8), 3, (X, EDGES)), "name of a file, not 3"),
    "make_base_shapes, a folder": (
        lambda tmp: make_base_shapes(Net(4), Net(8), tmp, (X, EDGES)),
            "cannot be written.*Name a file"),
    "save_base_shapes, no shapes": (
        lambda tmp: save_base_shapes(Net(), tmp / "a"), "takes what make_base_shapes returns"),
    "save_base_shapes, no path": (lambda _: save_base_shapes(own(), None), "name of a file"),
    "save_base_shapes, no folder": (
        lambda tmp: save_base_shapes(own(), tmp / "a" / "b"), "cannot be written.*Name a file"),
    "save_base_shapes, a format": (
        lambda tmp: save_base_shapes(own(), tmp / "a", "x"), 'format="gnn_mup"'),
    "load_base_shapes, no path": (lambda _: load_base_shapes(None), "name of a file"),
    "save, no model": (lambda tmp: save("x", tmp / "a"), r"not str.*save\(model, path\)"),
    "save, no path": (lambda _: save(Net(), None), "name of a file, not None"),
    "save, a folder": (lambda tmp: save(Net(), tmp), "cannot be written.*Name a file"),
    "save, no folder": (lambda tmp: save(Net(), tmp / "a" / "b"), "cannot be written.*Name a file"),
    "load, no model": (lambda tmp: load(Net, tmp / "a"), "Net is a class"),
    "load, no path": (lambda _: load(Net(), 3), "name of a file, not 3"),
    "load, a folder": (lambda tmp: load(Net(), tmp),
        r"cannot be read.*gnn_mup.save\(model, path\)"),
    "load, no file": (lambda tmp: load(Net(), tmp / "no"), "cannot be read.*gnn_mup.save"),
    "load, no device": (lambda tmp: load(Net(), saved(tmp, Net()), "nowhere"), "cannot be read"),
    "plan.save": (lambda tmp: plan_transfer(Net(), (X, EDGES)).save(tmp), "cannot be written"),
    "groups.scaled": (lambda _: apply_transfer(Net(), (X, EDGES)).scaled("x"),
        "value must be a num"),
    "groups.scaled, NaN": (lambda _: apply_transfer(Net(), (X, EDGES)).scaled(NAN),
        "value must be f"),
    "clip_grad_norm_, parameters": (
        lambda _: clip_grad_norm_(Net().parameters(), 1.0), "takes parameter groups.*param_groups"),
    "clip_grad_norm_, None": (lambda _: clip_grad_norm_(None, 1.0), "takes parameter groups"),
    "clip_grad_norm_, zero": (lambda _: clip_grad_norm_([], 0.0), "max_norm must be positive"),
    "clip_grad_norm_, NaN": (lambda _: clip_grad_norm_([], NAN), "max_norm must be positive"),
    "clip_grad_norm_, text": (lambda _: clip_grad_norm_([], "1"), "max_norm must be a number"),
    "attach_infshapes, not applied": (
        lambda _: attach_infshapes(Net(), "a.bsh"), "carries no transfer. Type"),
    "group_rates": (lambda _: group_rates(3), "takes an optimizer, not 3"),
    "watch, no optimizer": (lambda _: watch(3), "watch takes an optimizer, not 3"),
    "watch, other groups": (
        lambda _: watch(torch.optim.Adam(Net().parameters())), r"groups.optimizer\(torch"),
    "family_of, no class": (lambda _: family_of(3), "3 is neither a known name nor an optimizer"),
    "MuonAdamW, parameters": (lambda _: MuonAdamW(Net().parameters()), "does not say whose it is"),
    "lr_find, no function": (lambda _: lr_find(adam(), 3), "closure must be a function"),
    "describes, no class": (lambda _: describes(Net()), "takes a class of torch.nn.Module"),
    "describes, no function": (lambda _: describes(Net)(3), r"handler\(layer\) ->"),
    "Weight": (lambda _: Weight(fan_in=3), r"fan_in=\(0,\)"),
    "NormalizeRows, a name": (lambda _: NormalizeRows("x"), r"write NormalizeRows\(\['x'\]\)"),
    "NormalizeRows, nothing": (lambda _: NormalizeRows(None), r"attrs=\['x'\]"),
    "NormalizeRows, numbers": (lambda _: NormalizeRows([3]), r"write NormalizeRows\(\['x'\]\)"),
    "NormalizeRows, a tensor": (lambda _: NormalizeRows()(X), r"NormalizeRows\(\)\(data\)"),
    "tau_epoch, text": (
        lambda _: tau_epoch(weight_decay="x", lr=1, batch_size=1, train_size=1),
        "weight_decay is 'x'; it has to be a number"),
    "tau_epoch, zero": (
        lambda _: tau_epoch(weight_decay=1, lr=0, batch_size=1, train_size=1),
            "lr is 0; it has to be"),
    "weight_decay_from_tau, None": (
        lambda _: weight_decay_from_tau(tau=1, lr=None, batch_size=1, train_size=1),
        "lr is None; it has to be a number"),
    "weight_decay_from_tau, NaN": (
        lambda _: weight_decay_from_tau(tau=NAN, lr=1, batch_size=1, train_size=1), "zero or more"),
    "TransferGNN, width": (lambda _: TransferGNN(5, 0, 2, 3),
        "width must be a whole number from 1"),
    "TransferGNN, depth": (lambda _: TransferGNN(5, 8, 0, 3), "depth must be a whole number"),
    "TransferGNN, input": (lambda _: TransferGNN(X, 8, 2, 3), "in_channels must be"),
    "TransferGNN, optimizer": (
        lambda _: TransferGNN(5, 8, 2, 3, optimizer="muon"), "one of 'sgd', 'adam', 'adamw'"),
    "TransferGNN, gamma": (lambda _: TransferGNN(5, 8, 2, 3, gamma=-1), "gamma must be finite"),
    "TransferGNN, mpnn": (
        lambda _: TransferGNN(5, 8, 2, 3, mpnn=lambda w: 3), r"mpnn\(8\) returned int"),
    "TransferGNN.global_lr": (lambda _: PAPER.global_lr("x"), "must be a number"),
}  # fmt: skip


def adam() -> torch.optim.Optimizer:
    return torch.optim.Adam(apply_transfer(Net(), (X, EDGES)))


def saved(tmp: Path, model: nn.Module) -> Path:
    save(model, tmp / "saved.pt")
    return tmp / "saved.pt"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str, tmp_path: Path) -> None:
    call, words = FUNCTIONS[name]
    refused(lambda: call(tmp_path), words)


def test_transferred_models_are_left_as_they_were() -> None:
    wrapped, frozen, plain = nn.Sequential(moved()), moved().requires_grad_(False), Net()
    for call, words, model in (
        (remove_transfer, "get_submodule", wrapped),
        (fold_transfer, "get_submodule", wrapped),
        (transfer_groups, "requires_grad_", frozen),
        (remove_transfer, "carries no transfer", plain),
        (fold_transfer, "carries no transfer", plain),
    ):
        refused(lambda call=call, model=model: call(model), words, model)


def test_every_public_name_is_in_a_table() -> None:
    """What is added to the package must be added here."""
    tested = set(FUNCTIONS) | set(STUDIES) | {"apply_transfer", "plan_transfer"} | set(MEASURES)
    names = {key.split(",")[0] for key in tested}
    records = {"BaseShapes", "FoldReport", "Plan", "TransferGroups"}
    public = {n for n in gnn_mup.__all__ if not _is_error(n)}
    assert public - records - names == set()


def _is_error(name: str) -> bool:
    value = getattr(gnn_mup, name)
    return isinstance(value, type) and issubclass(value, Exception)


def checkpoints() -> dict[str, Any]:
    weights = Net().state_dict()
    head = {"format": "gnn_mup checkpoint 1", "factors": {}}
    return {
        "another dict": {"a": 1},
        "only weights": weights,
        "half": {"format": head["format"]},
        "no tables": {**head, "factors": 3, "state_dict": 4},
        "no weights": {**head, "state_dict": 4},
        "a number for a tensor": {**head, "state_dict": {**weights, "enc.weight": 3}},
        "one missing": {
            **head,
            "state_dict": {k: v for k, v in weights.items() if k != "dec.bias"},
        },
        "one too many": {**head, "state_dict": {**weights, "extra": X}},
        "another width": {**head, "state_dict": Net(16).state_dict()},
        "a whole model": Net(),
    }


@pytest.mark.parametrize("name", checkpoints())
def test_checkpoints(name: str, tmp_path: Path) -> None:
    torch.save(checkpoints()[name], tmp_path / "file.pt")
    model = Net()
    refused(
        lambda: load(model, tmp_path / "file.pt"), "load_state_dict|sizes it was|cannot be", model
    )


def test_checkpoints_of_transferred_models(tmp_path: Path) -> None:
    model = Net()
    refused(lambda: load(model, saved(tmp_path, moved())), 'init="keep"', model)
    model = moved()
    refused(lambda: load(model, saved(tmp_path, Net())), 'init="keep"', model)
    model = moved(8, gamma=3.0)
    refused(lambda: load(model, saved(tmp_path, moved(8, 3))), "factors differ", model)


def test_layers_replaced_after_the_transfer() -> None:
    """A new head is common: what is still there gets its scale back, the rest is left alone."""
    model = moved()
    model.dec = nn.Linear(8, 7)
    head = model.dec.weight.detach().clone()
    refused(lambda: fold_transfer(model), r"dec.weight.*remove_transfer\(model\)", model)
    remove_transfer(model)
    assert type(model) is Net
    assert torch.equal(model.dec.weight, head)
    model = moved()
    model.convs = nn.ModuleList(list(model.convs)[:1])
    assert type(remove_transfer(model).convs[0]) is GINConv


class Odd(nn.Linear):
    pass


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "must return a dict"),
        ("x", "must return a dict"),
        ({"weight": 3}, r"Weight\(fan_in=\(1,\)"),
        ({"weight": Weight((-1,))}, "axes are counted from 0"),
        ({"weight": Weight((5,))}, "names axis 5"),
        ({"gain": Weight((0,))}, "has only weight, bias"),
    ],
    ids=str,
)
def test_handlers(said: Any, words: str) -> None:
    from gnn_mup.analysis.extend import LAYERS

    model = Net()
    model.enc = Odd(5, 8)
    describes(Odd)(lambda layer: said)
    try:
        refused(lambda: apply_transfer(model, (X, EDGES)), words, model)
    finally:
        del LAYERS[Odd]


# ---- measurements -------------------------------------------------------------------------------


GRAPH = Data(x=X, edge_index=EDGES)
MEASURES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "measure_gamma, None": (None, {}, "data is a NoneType; pass a PyG Dataset"),
    "measure_gamma, nothing": ([], {}, "data holds no graph; pass"),
    "measure_gamma, hetero": (HeteroData(), {}, r"Use .to_homogeneous\(\)"),
    "measure_gamma, no nodes": (Data(x=X[:0], edge_index=NONE), {}, "leave empty graphs out"),
    "measure_gamma, no features": (Data(x=X[:, :0], edge_index=EDGES), {},
        "leave empty graphs out"),
    "measure_gamma, NaN": (Data(x=X * NAN, edge_index=EDGES), {}, "not finite in 12 row"),
    "measure_gamma, whole": (Data(x=X.long(), edge_index=EDGES), {}, r"make them .float\(\)"),
    "measure_gamma, meta": (Data(x=X, edge_index=EDGES).to("meta"), {}, "meta device.*Load"),
    "measure_gamma, range": (Data(x=X, edge_index=EDGES + 50), {}, "runs from 50"),
    "measure_gamma, text": (Data(x=X, edge_index="abc"), {}, "not .2, edges. integers: str"),
    "measure_gamma, operator": (GRAPH, {"operator": 3}, r"pass a function \(x, edge_index\)"),
    "measure_gamma, rows": (GRAPH, {"operator": lambda x, e: x[:3]},
        r"return P x, of shape \[12, 5"),
    "measure_gamma, result": (GRAPH, {"operator": lambda x, e: None}, "it returned NoneType"),
    "measure_gamma, weights": (GRAPH, {"edge_weight": "w"}, "has to name one number per edge"),
    "measure_gamma, count": (GRAPH, {"max_graphs": 1.5},
        "max_graphs is 1.5; it has to be at least"),
    "measure_gamma, seed": (GRAPH, {"max_graphs": 1, "seed": "x"}, "seed must be a whole number"),
    "measure_correction, None": (None, {}, "data is a NoneType; pass a PyG Dataset"),
    "measure_correction, NaN": (Data(x=X * INF, edge_index=EDGES), {}, "not finite"),
    "measure_correction, meta": (Data(x=X).to("meta"), {}, "meta device"),
    "measure_correction, pairs": ([GRAPH] * 2, {"pairs": 1.5}, "use 'all' or a number"),
    "measure_correction, batch": ([GRAPH] * 2, {"batch_size": "x"}, "batch_size is x"),
    "measure_correction, task": ([GRAPH] * 2, {"task": []}, "there are 'graph', 'node'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEASURES)
def test_measurements(name: str) -> None:
    data, arguments, words = MEASURES[name]
    run: Any = measure_gamma if name.startswith("measure_gamma") else measure_correction
    refused(lambda: run(data, **arguments), words)


def test_gamma_of_a_graph_without_edges_is_zero() -> None:
    assert measure_gamma(Data(x=X, edge_index=NONE)).mean == 0.0
