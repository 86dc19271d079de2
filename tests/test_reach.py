"""Sums in functions of every kind are scaled for one model alone, wherever they stand."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import subprocess
import sys
import warnings
from typing import Any

import helpers_of_models as helpers
import pytest
import torch
from helpers_of_models import Adder, made, of_a_layer, plus, with_default
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gnn_mup import SurgeryError, apply_transfer, fold_transfer, remove_transfer
from gnn_mup.ir.graph import Frame, Site
from gnn_mup.surgery.classes import _classes
from gnn_mup.surgery.drafts import Drafts
from gnn_mup.surgery.route import route

L, D = 3, 8


class Layers(nn.Module):
    """Residual layers; how a branch is added is left open."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(5, D), nn.Linear(D, 2)
        self.layers = nn.ModuleList(nn.Linear(D, D) for _ in range(L))

    def forward(self, x: Tensor) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = self.step(x, layer(x).tanh(), layer)
        return self.dec(x)

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        raise NotImplementedError

    def by_hand(self, x: Tensor, factor: float) -> Tensor:
        x = self.enc(x)
        for layer in self.layers:
            x = x + factor * layer(x).tanh()
        return self.dec(x)


class Function(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return plus(x, h)


class ThroughModule(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return helpers.plus_in_two_steps(h=h, x=x)


class Starred(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        pair = (x, h, None)
        return with_default(*pair, **{"other": 3})


class TwoCalls(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return helpers.both(x, h, torch.ones_like(h))


class Decorated(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return helpers.plus_decorated(x, h)


class Nested(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        def inner(a: Tensor) -> Tensor:
            b = a + h
            return b

        return inner(x)


class NestedForALibrary(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        def inner(a: Tensor) -> Tensor:
            b = a + h
            return b

        return checkpoint(inner, x, use_reentrant=False)


class HandedToALibrary(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return checkpoint(plus, x, h, use_reentrant=False)


class Closure(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.join = made(1.0)

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return self.join(x, h)


class MadeOnTheWay(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return made(1.0)(x, h)


class Lambda(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.other, self.join = (lambda x: x + 1), (lambda x, h: 1.0 * (x + h))

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return self.join(x, h)


class Partial(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.join = functools.partial(with_default, scale=1.0)

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return self.join(x, h)


class OfAnObject(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.adder = Adder()

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return self.adder.add(x, h)


class Static(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return Adder.statically(x, h)


class GivenAModule(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return of_a_layer(layer, x)


class AnotherName(Layers):
    """A method of any name, kept under another one on the object."""

    def __init__(self) -> None:
        super().__init__()
        self.join = self.any_name

    def any_name(self, x: Tensor, h: Tensor) -> Tensor:
        y = x + h
        return y

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return self.join(x, h)


class TwoNames(Layers):
    def first(self, x: Tensor, h: Tensor) -> Tensor:
        y = x + h
        return y

    second = first

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return self.second(x, h)


class Property(Layers):
    @property
    def joined(self) -> Tensor:
        y = self.x + self.h
        return y

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        self.x, self.h = x, h
        y = self.joined
        del self.x, self.h
        return y


class Asserting(Layers):
    """pytest changes the asserts of this file, and with them the code that runs."""

    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        assert x.shape == h.shape, f"{x.shape} is not {h.shape}"
        y = x + h
        assert y.dim() == 2
        return y


class Comprehended(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        (y,) = [x + part for part in (h,)]
        return y


REACHED = [
    Function, ThroughModule, Starred, TwoCalls, Decorated, Nested, NestedForALibrary,
    HandedToALibrary, Closure, MadeOnTheWay, Lambda, Partial, OfAnObject, Static, GivenAModule,
    AnotherName, TwoNames, Property, Asserting, Comprehended,
]  # fmt: skip
UNPICKLED = (Closure, Lambda)
"""What pickle cannot take with or without us."""


def built(cls: type[Layers]) -> Layers:
    torch.manual_seed(0)
    return cls()


def example() -> Tensor:
    return torch.randn(6, 5, generator=torch.Generator().manual_seed(1))


def assert_scaled(model: Any, factor: float = 1 / L) -> None:
    torch.testing.assert_close(model(example()), built(Function).by_hand(example(), factor))


@pytest.mark.parametrize("cls", REACHED, ids=lambda cls: cls.__name__)
def test_reached_and_put_back(cls: type[Layers]) -> None:
    model = built(cls)
    plan = apply_transfer(model, example(), base="paper", init="keep").plan
    assert plan.warnings == ()
    assert [(b.count, b.factor) for b in plan.branches if b.factor != 1.0] == [(L, 1 / L)]
    assert_scaled(model)
    assert_scaled(copy.deepcopy(model))
    if cls not in UNPICKLED:
        assert_scaled(pickle.loads(pickle.dumps(model)))
    assert_scaled(built(cls), 1.0)  # another model of the same class
    remove_transfer(model)
    assert_scaled(model, 1.0)
    assert type(model) is cls


@pytest.mark.parametrize("cls", REACHED, ids=lambda cls: cls.__name__)
def test_reached_by_fold(cls: type[Layers]) -> None:
    model = built(cls)
    apply_transfer(model, example(), base="paper", init="keep")
    before = model(example())
    assert "tanh" in str(fold_transfer(model))
    torch.testing.assert_close(model(example()), before)


COMPILED = [c for c in REACHED if c not in (NestedForALibrary, HandedToALibrary, Property)]


@pytest.mark.parametrize("cls", COMPILED, ids=lambda cls: cls.__name__)
def test_reached_under_compile(cls: type[Layers]) -> None:
    model = built(cls)
    apply_transfer(model, example(), base="paper", init="keep")
    torch._dynamo.reset()
    whole = cls is not MadeOnTheWay
    if cls in (Closure, Decorated, Lambda):
        model(example())  # functions without a name of their own are found when they run
    assert_scaled(torch.compile(model, backend="eager", fullgraph=whole))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return plus(x, self.lin(x).tanh())


class Shared(nn.Module):
    """Several modules call one function; in one of them it adds no branch."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.other = nn.Linear(5, D), nn.Linear(5, D)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.dec = nn.Linear(D, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = plus(self.enc(x), self.other(x))
        for block in self.blocks:
            y = block(y)
        return self.dec(y)


def test_a_function_that_modules_share() -> None:
    torch.manual_seed(0)
    model = Shared()
    twin = copy.deepcopy(model)
    apply_transfer(model, example(), base="paper", init="keep")
    y = twin.enc(example()) + twin.other(example())
    for block in twin.blocks:
        y = y + block.lin(y).tanh() / L
    torch.testing.assert_close(model(example()), twin.dec(y))


class Recursive(Layers):
    """Every call of a function by itself is a call of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return self.dec(helpers.times(self.enc(x), L, self.layers[0]))


def test_a_function_that_calls_itself() -> None:
    model, twin = built(Recursive), built(Recursive)
    apply_transfer(model, example(), base="paper", init="keep")
    x = twin.enc(example())
    for _ in range(L):
        x = x + twin.layers[0](x).tanh() / L
    torch.testing.assert_close(model(example()), twin.dec(x))


def test_into_a_fresh_process(tmp_path: Any) -> None:
    model = built(TwoCalls)
    apply_transfer(model, example(), base="paper", init="keep")
    file = tmp_path / "model.pkl"
    file.write_bytes(pickle.dumps((model, example(), model(example()))))
    code = (
        "import pickle, sys, torch; m, x, y = pickle.load(open(sys.argv[1], 'rb'));"
        "torch.testing.assert_close(m(x), y);"
        "torch.testing.assert_close(torch.compile(m, backend='eager', fullgraph=True)(x), y)"
    )
    path = [*map(str, sys.path)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path!r}; {code}", str(file)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]


# ---- what is said -------------------------------------------------------------------------------


class Operator:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __add__(self, other: Tensor) -> Tensor:
        y = self.x + other
        return y


class ByOperator(Layers):
    def step(self, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
        return Operator(x) + h


class OnTheObject(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.step = plus_on_object.__get__(self)  # type: ignore[method-assign]


def plus_on_object(self: Layers, x: Tensor, h: Tensor, layer: nn.Module) -> Tensor:
    return x + h


@pytest.mark.parametrize(
    ("cls", "words"),
    [(ByOperator, "without calling it by name"), (OnTheObject, "set on the object")],
)
def test_what_cannot_be_reached_is_said(cls: type[Layers], words: str) -> None:
    model = built(cls)
    plan = apply_transfer(model, example(), base="paper", init="keep").plan
    assert [words in str(warning) for warning in plan.warnings] == [True]
    assert_scaled(model, 1.0)


def test_without_columns_it_says_what_to_do() -> None:
    code = (
        "import torch, gnn_mup; from test_reach import *;"
        "p = gnn_mup.apply_transfer(built(Function), example()).plan; print(*p.warnings)"
    )
    path = [*map(str, sys.path)]
    done = subprocess.run(
        [sys.executable, "-X", "no_debug_ranges", "-B", "-c",
         f"import sys; sys.path[:0] = {path!r}; {code}"],
        capture_output=True, text=True, timeout=300,
        env={"PYTHONPYCACHEPREFIX": "/nonexistent", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert "PYTHONNODEBUGRANGES" in done.stdout, done.stderr[-2000:]


def test_script_is_refused_in_words() -> None:
    model = built(Function)
    apply_transfer(model, example(), base="paper")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with pytest.raises(SurgeryError, match=r"Function.*gnn_mup.*fold_transfer"):
            torch.jit.script(nn.Sequential(model))


def test_classes_go_with_their_models() -> None:
    gc.collect()
    before = len(_classes)
    model = built(Function)
    apply_transfer(model, example(), base="paper")
    twin = built(Function)
    apply_transfer(twin, example(), base="paper")
    assert type(model) is type(twin)
    assert len(_classes) == before + 1
    del model, twin
    gc.collect()
    assert len(_classes) == before


# ---- routes, by hand ----------------------------------------------------------------------------


def inner_sum(x: Any, h: Any) -> Any:
    y = x + h
    return y


def outer_call(x: Any, h: Any) -> Any:
    return inner_sum(x, h) * 1


def frame(function: Any, operation: str, owner: str | None = None) -> Frame:
    """The instruction of a function whose source is this text."""
    import dis
    import inspect

    lines, first = inspect.getsourcelines(function)
    for instruction in dis.get_instructions(function):
        at = instruction.positions
        if at is None or at.lineno is None or at.end_lineno != at.lineno:
            continue
        text = lines[at.lineno - first][at.col_offset : at.end_col_offset]
        if text == operation:
            return Frame(function.__code__, instruction.offset, owner, function.__module__)
    raise AssertionError(operation)


def test_a_route_leads_from_the_method_to_the_sum() -> None:
    frames = (
        frame(inner_sum, "x + h"),
        frame(outer_call, "inner_sum(x, h)"),
        frame(Function.step, "plus(x, h)", owner="block"),
    )
    owner, steps = route(Site(*frames[0][:2], frames=frames), "operand1")
    assert owner == "block"
    assert [step.key.qualname for step in steps] == ["Function.step", "outer_call", "inner_sum"]
    assert not any(step.skips for step in steps)


def test_a_route_without_a_method() -> None:
    frames = (frame(inner_sum, "x + h"), frame(outer_call, "inner_sum(x, h)"))
    with pytest.raises(SurgeryError, match="outside any method"):
        route(Site(*frames[0][:2], frames=frames), "operand1")


def test_drafts_collect_what_they_leave_out() -> None:
    drafts = Drafts(built(Function))
    frames = (frame(inner_sum, "x + h"),)
    site = Site(*frames[0][:2], frames=frames)
    assert drafts.try_edit(site, "operand1", 0.5, "residual branch") is None
    assert [(left.what, "outside any method" in left.reason) for left in drafts.left_out] == [
        ("residual branch", True)
    ]
    assert drafts.operations() == ()
