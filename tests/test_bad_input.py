"""Whatever is passed to `apply_transfer`: a `TransferError` that says what to do, and a model that
is as it was. A row of a table is a name, what is passed, and words of the message."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bad_input import (
    EDGES,
    INF,
    NAN,
    NONE,
    Lazy,
    Net,
    NoForward,
    Raises,
    Silent,
    X,
    fingerprint,
    moved,
    own,
    refused,
    words_in,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch_geometric.data import Data, HeteroData

from gnn_mup import (
    AlreadyApplied,
    BaseShapeError,
    ExampleNeeded,
    NotApplied,
    TraceError,
    apply_transfer,
    load_base_shapes,
    make_base_shapes,
    plan_transfer,
    remove_transfer,
    transfer_groups,
)

# ---- models and examples ------------------------------------------------------------------------


def meta(part: str = "") -> nn.Module:
    model = Net()
    model.get_submodule(part).to("meta")
    return model


def meta_buffer() -> nn.Module:
    model = Net()
    model.norm.running_mean = torch.zeros(8, device="meta")
    return model


def compiled() -> nn.Module:
    model = Net()
    model.compile(backend="eager")
    return model


def compiled_forward() -> nn.Module:
    model = Net()
    model.forward = torch.compile(model.forward, backend="eager")
    return model


def traced() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(Net().eval(), (X, EDGES))


def filled(value: float) -> nn.Module:
    model = Net()
    nn.init.constant_(model.convs[0].nn.weight, value)
    return model


def zero_width() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Net(0)


Row = tuple[Any, Any, str]

MODELS: dict[str, Row] = {
    "None": (lambda: None, (X, EDGES), "torch.nn.Module, not NoneType. Pass the model itself"),
    "a string": (lambda: "model", (X, EDGES), "torch.nn.Module, not str"),
    "a class": (lambda: Net, (X, EDGES), r"Net is a class: make a model of it.*Net\(\.\.\.\)"),
    "parameters": (lambda: list(Net().parameters()), (X, EDGES), "torch.nn.Module, not list"),
    "weights": (lambda: Net().state_dict(), (X, EDGES), "torch.nn.Module, not OrderedDict"),
    "a tensor": (lambda: X, (X, EDGES), "torch.nn.Module, not Tensor"),
    "no parameters": (lambda: nn.Sequential(nn.ReLU()), (X,), "no parameters.*Pass the model"),
    "frozen": (lambda: Net().requires_grad_(False), (X, EDGES), r"requires_grad_\(True\)"),
    "width zero": (zero_width, (X, EDGES), r"enc.weight has no elements.*sizes from 1 on"),
    "outputs zero": (lambda: Net(out=0), (X, EDGES), r"dec.weight has no elements"),
    "NaN weights": (
        lambda: filled(NAN),
        (X, EDGES),
        r"convs.0.nn.weight: it holds nan.*Initialise",
    ),
    "infinite weights": (lambda: filled(INF), (X, EDGES), "convs.0.nn.weight: it holds nan or inf"),
    "meta": (meta, (X, EDGES), r"meta device.*to_empty\(device"),
    "partly meta": (lambda: meta("dec"), (X, EDGES), r"meta device \(dec.weight\).*to_empty"),
    "a meta buffer": (meta_buffer, (X, EDGES), r"meta device \(norm.running_mean\)"),
    "DataParallel": (lambda: nn.DataParallel(Net()), (X, EDGES), "plain model first"),
    "torch.compile": (lambda: torch.compile(Net(), backend="eager"), (X, EDGES), "plain model fi"),
    "compile()": (compiled, (X, EDGES), "plain model first, then compile or wrap it"),
    "a compiled forward": (compiled_forward, (X, EDGES), "plain model first"),
    "jit.trace": (traced, (X, EDGES), "plain model first"),
    "DataParallel inside": (
        lambda: nn.Sequential(nn.DataParallel(Net())),
        (X, EDGES),
        "0 is compiled or wrapped.*parts of a model may be compiled",
    ),
    "transferred": (moved, (X, EDGES), r"transferred already.*remove_transfer\(model\)"),
    "transferred inside": (lambda: nn.Sequential(moved()), (X, EDGES), "transferred already"),
    "no forward": (NoForward, (X,), "NoForward.forward raised NotImplementedError"),
    "no forward, no example": (NoForward, None, r"cannot be probed.*Pass what one call takes"),
    "a list of layers": (lambda: nn.ModuleList([nn.Linear(5, 5)]), (X,), "missing the required"),
    "lazy, no example": (Lazy, None, r"lazy layers.*apply_transfer\(model, \(x, edge_index"),
    "lazy, raises": (lambda: Lazy(True), (X, EDGES), r"ValueError: the second layer\. Pass"),
    "lazy, NaN": (Lazy, (X * NAN, EDGES), "NaN or infinite"),
}
for error in (
    KeyError("k"),
    RuntimeError(),
    NotImplementedError(),
    StopIteration(),
    RecursionError(),
):
    MODELS[f"raises {type(error).__name__}"] = (
        functools.partial(Raises, error),
        (X, EDGES),
        rf"Raises.forward raised {type(error).__name__}.*apply_transfer\(model, \(x, edge",
    )

EXAMPLES: dict[str, tuple[Any, str]] = {
    "a number": (7, "int is nothing a forward call takes. Pass a tuple"),
    "a string": ("x", "str is nothing a forward call takes"),
    "a model": (Net(), "Net is nothing a forward call takes"),
    "an array": (X.numpy(), "ndarray is nothing a forward call takes"),
    "a generator": ((t for t in (X, EDGES)), "generator is nothing a forward call takes"),
    "no arguments": ((), r"missing 2 required.*apply_transfer\(model, \(x, edge_index\)\)"),
    "no keywords": ({}, "missing 2 required"),
    "one argument": (X, r"missing 1 required positional argument: 'edge_index'"),
    "another keyword": ({"x": X, "edges": EDGES}, "unexpected keyword argument 'edges'"),
    "numbers for keywords": ({1: X, 2: EDGES}, "keywords must be strings"),
    "arrays": ((X.numpy(), EDGES), "must be Tensor, not numpy.ndarray"),
    "swapped": ((EDGES, X), r"apply_transfer\(model, \(x, edge_index\)\)"),
    "a list of graphs": ([Data(x=X, edge_index=EDGES)], "missing 1 required"),
    "data without fields": (Data(), r"needs 'x', and the data object has only.*\(x, edge_index\)"),
    "hetero data": (HeteroData(), "needs 'x'"),
    "an empty loader": (DataLoader([]), "loader is empty: pass a batch"),
    "an empty graph": ((X[:0], NONE), "empty graph.*Pass a batch"),
    "an empty data object": (Data(x=X[:0], edge_index=NONE), "empty graph"),
    "one node in a batch norm": ((X[:1], NONE), "more than 1 value per channel"),
    "edges as numbers": ((X, EDGES.float()), "to be of integer type"),
    "edges out of range": ((X, EDGES + 20), "larger than 11"),
    "one row of edges": ((X, EDGES[:1]), "size '2' in the first dimension"),
    "NaN": ((X * NAN, EDGES), r"NaN or infinite values \(a tensor of shape \(12, 5\)\).*Clean it"),
    "infinite": ((X / 0, EDGES), "NaN or infinite"),
    "NaN in a data object": (Data(x=X * NAN, edge_index=EDGES), "NaN or infinite"),
    "whole numbers": ((X.long(), EDGES), r"whole numbers only: features need \.float\(\)"),
    "flags": ((X > 0, EDGES), r"whole numbers only"),
    "double": ((X.double(), EDGES), r"holds torch.float64, the model torch.float32: .to\(torch.fl"),
    "half": ((X.half(), EDGES), r"holds torch.float16, the model torch.float32"),
    "complex": ((X.to(torch.complex64), EDGES), "same dtype"),
    "meta": ((X.to("meta"), EDGES.to("meta")), "meta device.*Pass a real batch"),
    "partly meta": ((X.to("meta"), EDGES), "meta device"),
    "a data object, meta": (Data(x=X, edge_index=EDGES).to("meta"), "meta device"),
    "another width": ((X[:, :4], EDGES), r"12x4 and 5x8"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    make, example, words = MODELS[name]
    for run in (apply_transfer, plan_transfer):
        model = make()
        refused(lambda run=run, model=model: run(model, example), words, model)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name: str) -> None:
    example, words = EXAMPLES[name]
    for run in (apply_transfer, plan_transfer):
        model = Net()
        refused(lambda run=run, model=model: run(model, example), words, model)
    base, delta = Net(), Net(16)
    refused(lambda: make_base_shapes(base, delta, example=example), words, base, delta)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_what_stops_a_program_goes_through_and_leaves_the_model(error: BaseException) -> None:
    for run in (apply_transfer, plan_transfer):
        model = Raises(error)
        refused(lambda run=run, model=model: run(model, (X, EDGES)), "", model, kind=type(error))


def test_the_right_kinds_of_error() -> None:
    plain, done = Net(), moved()
    refused(lambda: apply_transfer(done, (X, EDGES)), "", done, kind=AlreadyApplied)
    refused(lambda: apply_transfer(plain, (X,)), "", plain, kind=TraceError)
    refused(lambda: apply_transfer(Lazy()), "", kind=ExampleNeeded)
    refused(lambda: plan_transfer(plain, (X, EDGES), base="no.bsh"), "", plain, kind=BaseShapeError)
    refused(lambda: remove_transfer(plain), "", plain, kind=NotApplied)


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of one, for wrappers that ask for it."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_distributed_wrappers(group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    ddp = nn.parallel.DistributedDataParallel(Net())
    refused(lambda: apply_transfer(ddp, (X, EDGES)), "plain model first", ddp.module)
    sharded = Net()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    refused(lambda: apply_transfer(sharded, (X, EDGES)), "plain model first")
    assert all(
        type(m).__name__ in ("FSDPNet", *map(_name, Net().modules())) for m in sharded.modules()
    )


def _name(module: nn.Module) -> str:
    return type(module).__name__


# ---- what is done rather than refused -----------------------------------------------------------


def test_a_graph_without_edges_shows_no_gamma() -> None:
    for gamma in ("auto", "layer"):
        plan = apply_transfer(model := Net(), (X, NONE), gamma=gamma).plan
        assert (plan.depth, plan.gamma, plan.width) == (2, 1.0, 8)
        assert torch.isfinite(model(X, EDGES)).all()


def test_one_node_is_enough_without_a_batch_norm() -> None:
    assert apply_transfer(Net().eval(), (X[:1], NONE)).plan.depth == 2


def test_part_of_a_model_may_be_frozen() -> None:
    model = Net()
    model.enc.requires_grad_(False)
    listed = [p for g in apply_transfer(model, (X, EDGES)) for p in g["params"]]
    assert len(listed) == len(list(model.parameters())) - 2


def test_lazy_models_are_planned_and_transferred_alike() -> None:
    torch.manual_seed(0)
    model = Lazy()
    before = fingerprint(model)
    planned = plan_transfer(model, (X, EDGES))
    assert fingerprint(model) == before
    assert apply_transfer(model, (X, EDGES)).plan == planned
    refused(lambda: apply_transfer(lazy, (X, EDGES), roles={"no": "encoder"}), "", lazy := Lazy())


class NotCompiled(Net):
    @torch.compiler.disable
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return super().forward(x, edge_index)


def test_what_must_not_be_compiled_is_not_taken_for_compiled() -> None:
    assert plan_transfer(NotCompiled(), (X, EDGES)).depth == 2


def test_half_precision_models() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        model = Net().to(dtype)
        plan = apply_transfer(model, (X.to(dtype), EDGES)).plan
        assert plan.depth == 2
        assert {p.dtype for p in model.parameters()} == {dtype}
        assert torch.isfinite(model(X.to(dtype), EDGES)).all()


@pytest.mark.parametrize(
    ("model", "example", "words"),
    [
        (Net(), (X * 1e38, EDGES), "RMS inf; the rules assume 1"),
        (Silent(), (X, EDGES), r"lost its way to the output \(no tensor was returned\)"),
    ],
    ids=["overflow", "no output"],
)
def test_what_looks_wrong_is_warned_of(model: nn.Module, example: Any, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = plan_transfer(model, example)
    assert any(words_in(words, line) for line in plan.warnings)


def test_a_learning_rate_of_zero_trains_nothing() -> None:
    assert {g["lr"] for g in apply_transfer(Net(), (X, EDGES), lr=0)} == {0.0}


# ---- arguments ----------------------------------------------------------------------------------

WRONG: dict[str, list[tuple[Any, str]]] = {
    "lr": [
        (-1, "lr must be finite and not negative, not -1"),
        (NAN, "lr must be finite"),
        (INF, "lr must be finite"),
        ("0.1", "lr must be a number, not '0.1'"),
        (None, "lr must be a number"),
        (True, "lr must be a number, not True"),
        ([0.1], "lr must be a number"),
        (torch.tensor(0.1), r"lr must be a number.*Pass lr=float\(\.\.\.\)"),
        (np.float32(0.1), r"Pass lr=float\(\.\.\.\)"),
    ],
    "weight_decay": [(-1, "weight_decay must be"), (NAN, "weight_decay"), ("x", "weight_decay")],
    "eps": [(-1e-8, "eps must be finite and not negative"), ("x", "eps must be a number")],
    "optimizer": [
        ("lyon", "neither a known name.*type one of sgd, adam"),
        (None, "type one of sgd, adam"),
        (3, "optimizer 3 is neither a known name"),
        (nn.Linear, "Linear.* is neither a known name nor an optimizer class"),
        (torch.optim.LBFGS, "optimizer LBFGS: it takes one learning rate.*Use Adam"),
        (torch.optim.Adam([X]), r"pass its class, optimizer=torch.optim.Adam,.*Adam\(groups\)"),
    ],
    "residual": [
        ("AUTO", "one of 'auto', 'scale', 'insert', 'gates', 'off'"),
        (None, "'auto'"),
        ([], "'o"),
    ],
    "depth": [
        (0, "depth must be a positive whole number, not 0"),
        (-1, "depth must"),
        (2.5, "depth must"),
        ("2", "depth must"),
        (True, "depth must"),
        (NAN, "depth must"),
    ],
    "gamma": [
        (-1, "gamma must be a positive number, not -1"),
        (0, "gamma must"),
        (NAN, "gamma must"),
        (INF, "gamma must"),
        (1e-320, "gamma must"),
        ("car", "gamma must be one of 'auto', 'layer'"),
        ([], "gamma must"),
        (X, "gamma must be a positive number, not a Tensor"),
    ],
    "correction": [(-1, "correction must"), (NAN, "correction must"), (None, "correction must"),
                   ("x", "correction must be one of 'auto'")],
    "init": [("zero", "one of 'rescale', 'keep'"), (None, "init must"), ([], "init must")],
    "lr_mult": [
        ({"nope": 2.0}, "'nope' matches no parameter of the model. Near it: .*weight"),
        ({"enc.*": -1.0}, r"lr_mult\['enc.\*'\] must be finite and not negative"),
        ({"enc.*": "x"}, r"lr_mult\['enc.\*'\] must be a number"),
        ({3: 1.0}, r"lr_mult takes patterns \(strings\), not 3"),
        (["enc"], r"lr_mult must be a dict, lr_mult=\{'decoder.\*': 0.5\}"),
        ("enc", "lr_mult must be a dict"),
        (3, "lr_mult must be a dict"),
        ({"": 1.0}, "'' matches no parameter"),
        ({"[": 1.0}, r"'\[' matches no parameter"),
    ],
    "no_decay": [
        (["nope"], "'nope' matches no parameter"),
        ("enc", r"takes a list of patterns: no_decay=\['enc'\]"),
        ([3], r"takes patterns \(strings\), not 3"),
        (3, "takes a list of patterns"),
    ],
    "roles": [
        ({"nope": "encoder"}, "roles: the pattern 'nope' matches no parameter.*Near it"),
        ({"enc.*": "nope"}, r"roles\['enc.\*'\] must be one of 'encoder', 'residual'"),
        ({"enc.*": ["encoder"]}, "must be one of"),
        ({3: "encoder"}, "takes patterns"),
        (["enc"], r"roles must be a dict, roles=\{'head.\*': 'decoder'\}"),
        ("enc", "roles must be a dict"),
        (3, "roles must be a dict"),
    ],
    "base": [
        (3, "base must be a size.*not int"),
        (b"x", "not bytes"),
        ({}, "not dict"),
        (Net, "not type"),
        ("no.bsh", r"no.bsh: no such file. Write one: make_base_shapes\("),
        ("", "no such file"),
        ("a\0b", "no such file"),
        (Net(4), r"base=build\(64\), delta=build\(96\)"),
    ],
    "delta": [
        ("x", "delta must be a model of the same class.*not 'x'"),
        ([Net(4), 3], "or several of them in a list, not 3"),
        (nn.Conv1d(3, 3, 2), "delta is a Conv1d that has no tensor at the place"),
        (moved(), "transferred already"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_arguments(name: str) -> None:
    for value, words in WRONG[name]:
        model = Net()
        for run in (apply_transfer, plan_transfer):
            refused(lambda run=run: run(model, (X, EDGES), **{name: value}), words, model)  # noqa: B023
    if name in ("lr", "weight_decay", "eps", "optimizer", "lr_mult", "no_decay"):
        model = moved()
        for value, words in WRONG[name]:
            if value is not None:
                refused(lambda: transfer_groups(model, **{name: value}), words, model)  # noqa: B023


def test_an_unknown_argument() -> None:
    model = Net()
    refused(lambda: plan_transfer(model, (X, EDGES), learning_rate=1), "learning_rate", model)


# ---- base shapes --------------------------------------------------------------------------------


def other() -> Any:
    pair = (nn.Sequential(nn.Linear(5, w), nn.Linear(w, 3)) for w in (8, 16))
    return make_base_shapes(*pair, example=(X,))


PAIRS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "a base of another model": (lambda: {"base": other()}, "enc.weight .*nothing at this place"),
    "a delta of another model": (
        lambda: {"base": Net(4), "delta": nn.Linear(3, 3)}, "same code, with another width only"),
    "a delta of the same width": (lambda: {"base": Net(4), "delta": Net(4)},
        "Make the delta wider"),
    "no delta": (lambda: {"base": Net(4), "delta": "x"}, r"delta=build\(96\)"),
    "a base without parameters": (lambda: {"base": nn.ReLU(), "delta": Net(4)}, "no parameters"),
    "a base on meta": (lambda: {"base": Net(4).to("meta"), "delta": Net(8)}, "to_empty"),
    "a lazy base": (lambda: {"base": Lazy(), "delta": Lazy()}, "lazy layers.*call it once"),
    "a transferred base": (lambda: {"base": moved(4), "delta": Net(8)}, "transferred already"),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_bases(name: str) -> None:
    make, words = PAIRS[name]
    model = Net(16)
    for run in (apply_transfer, plan_transfer):
        given = make()
        inside = [m for m in given.values() if isinstance(m, nn.Module)]
        refused(lambda run=run, given=given: run(model, (X, EDGES), **given), words, model, *inside)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Net(16, data=4), r"enc.weight \[16, 4\]: its base is enc.weight \[4\*, 5\]"),
        (Net(16, out=7), "Give the model the base's other sizes"),
        (nn.Sequential(Net(16)), "nothing at this place"),
    ],
    ids=["other data", "other output", "other names"],
)
def test_targets_of_another_model(model: nn.Module, words: str) -> None:
    features = 4 if words.startswith("enc") else 5
    example = {"input": X} if isinstance(model, nn.Sequential) else (X[:, :features], EDGES)
    if isinstance(model, nn.Sequential):
        model = nn.Sequential(nn.Linear(5, 16), nn.Linear(16, 3))
    base = own()
    refused(lambda: apply_transfer(model, example, base=base), words, model)


FILES: dict[str, tuple[bytes | None, str]] = {
    "empty": (b"", "holds 0 documents"),
    "binary": (bytes(range(256)), "not a text file.*Pass a .bsh file"),
    "utf16": ("a: [1]".encode("utf-16"), "not a text file"),
    "a list": (b"[1, 2]", "must be a table, not a list. Mend it, or write it again"),
    "null": (b"enc.weight: null", "line 1: enc.weight must be a list"),
    "a picture": (b"\x89PNG\r\n\x1a\n", "not a text file"),
    "code": (b"a: !!python/object/apply:os.system ['touch executed']", "tags such as"),
    "laughs": (b"a: &a [1]\nb: [*a, *a]", "anchors and aliases"),
    "deep": (b"[" * 2000, "nested too deeply"),
    "a folder": (None, "no such file"),
}


@pytest.mark.parametrize("name", FILES)
def test_base_files(name: str, tmp_path: Path) -> None:
    content, words = FILES[name]
    path = tmp_path / "file.bsh"
    path.mkdir() if content is None else path.write_bytes(content)
    model = Net()
    refused(lambda: load_base_shapes(path), words, kind=BaseShapeError)
    refused(lambda: apply_transfer(model, (X, EDGES), base=path), words, model, kind=BaseShapeError)
    assert not Path("executed").exists()
