"""One residual step in the many ways it can be written: found and scaled, or said in words."""

from __future__ import annotations

import copy
import functools
import math
import operator
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from models import D, L, PreNorm
from torch import Tensor, nn

from gnn_mup import apply_transfer, fold_transfer
from gnn_mup.ir.expand import expanded
from gnn_mup.ir.graph import Ref
from gnn_mup.rules.plan import Plan

Branch = Callable[[Tensor], Tensor]


class Written(PreNorm):
    """The layers of `PreNorm` with a step of one's own: step(x, h) has to be x + by_hand(h)."""

    branch: Branch = staticmethod(lambda h: h)  # type: ignore[assignment]

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = self.step(x, F.relu(conv(norm(x), edge_index)))
        return self.dec(x)

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + f * self.branch(F.relu(conv(norm(x), edge_index)))
        return self.dec(x)


class Stack(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.stack([x, h]).sum(0)


class IndexAdd(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return x.index_add(0, torch.arange(len(x)), h)


class StackLast(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.sum(torch.stack((h, x), dim=-1), dim=-1)


class StackOfThree(Written):
    branch = staticmethod(lambda h: h + h.tanh())

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.stack([h, x, h.tanh()]).sum(dim=0)


class Cat(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.cat([x[None], h[None]]).sum(0)


class NamedArguments(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.add(x, other=h)


class AllNamed(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.add(input=h, other=x)


class NamedMethod(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return x.add(other=h)


class Alpha(Written):
    branch = staticmethod(lambda h: 0.5 * h)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.add(x, h, alpha=0.5)


class Subtract(Written):
    branch = staticmethod(lambda h: -h)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.subtract(x, h)


class Reversed(Written):
    branch = staticmethod(lambda h: -h)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.rsub(h, x)


class Operator(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return operator.add(h, x)


class Addcmul(Written):
    branch = staticmethod(lambda h: 0.5 * h * torch.sigmoid(h))

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.addcmul(x, h, torch.sigmoid(h), value=0.5)


class AddcmulInPlace(Written):
    branch = staticmethod(lambda h: h * h)

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return x.clone().addcmul_(h, h)


class Addcdiv(Written):
    branch = staticmethod(lambda h: h / (1 + h))

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.addcdiv(x, h, 1 + h)


class Addmm(Written):
    branch = staticmethod(lambda h: 2 * h.flip(1))

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.addmm(x, h, torch.eye(D).flip(0), alpha=2)


class Baddbmm(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.baddbmm(x[None], h[None], torch.eye(D)[None])[0]


class MeanThenNorm(Written):
    """A norm takes the sum up: only the summands' proportion counts."""

    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return F.layer_norm(torch.stack([x, h]).mean(0), (D,))

    def by_hand(self, x: Tensor, edge_index: Tensor, f: float) -> Tensor:
        x = self.enc(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.layer_norm(0.5 * (x + f * F.relu(conv(norm(x), edge_index))), (D,))
        return self.dec(x)


SCALED = (
    Stack, StackLast, StackOfThree, Cat, NamedArguments, AllNamed, NamedMethod, Alpha, Subtract,
    Reversed, Operator, Addcmul, AddcmulInPlace, Addcdiv, Addmm, Baddbmm, MeanThenNorm, IndexAdd,
)  # fmt: skip


def built(cls: type[Written]) -> Written:
    torch.manual_seed(1)
    return cls().eval()


def transferred(model: nn.Module) -> Plan:
    return apply_transfer(model, PreNorm.example(), base="paper", init="keep", gamma=None).plan


@pytest.mark.parametrize("cls", SCALED, ids=lambda cls: cls.__name__)
def test_it_is_scaled_as_written_by_hand(cls: type[Written]) -> None:
    model, twin, example = built(cls), built(cls), PreNorm.example()
    torch.testing.assert_close(model(*example), twin.by_hand(*example, f=1.0))
    plan = transferred(model)
    assert plan.depth == L
    assert {p.role for n, p in plan.params.items() if n.startswith("convs")} == {"residual"}
    # 0.5 may be 1/sqrt(4) or a number: without a second depth nothing shows which.
    assert {note.code for note in plan.warnings} <= {"ambiguous"}
    torch.testing.assert_close(model(*example), twin.by_hand(*example, f=1 / L))


@pytest.mark.parametrize("cls", [Stack, StackOfThree, Cat, Addcmul, Addmm, IndexAdd])
def test_it_folds(cls: type[Written]) -> None:
    model, example = built(cls), PreNorm.example()
    transferred(model)
    before = model(*example)
    fold_transfer(model)
    torch.testing.assert_close(model(*example), before, rtol=1e-5, atol=1e-5)


# ---- constants and gates ------------------------------------------------------------------------


class Lerp(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.lerp(x, h, 0.25)


class Mean(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.stack([x, h]).mean(0)


class LerpByWeights(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.lerp(h, x, torch.sigmoid(x))


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (Lerp, "scaled skip (coefficient 0.75)"),
        (Mean, "scaled skip (coefficient 0.5)"),
        (LerpByWeights, "gate"),
    ],
)
def test_constants_and_gates_are_left_alone(cls: type[Written], kind: str) -> None:
    model, twin = built(cls), built(cls)
    plan = transferred(model)
    assert [(b.count, b.what, b.factor) for b in plan.branches] == [(L, kind, 1.0)]
    assert "width only" in plan.warnings[0]
    assert torch.equal(model(*PreNorm.example()), twin(*PreNorm.example()))


# ---- refused, or said ---------------------------------------------------------------------------


class Started(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return sum([h], x)


class Reduced(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return functools.reduce(operator.add, [x, h])


class StackedElsewhere(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        both = torch.stack([x, h])
        return both.sum(0)


class Halves(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        x = x.clone()
        x[:, : D // 2] += h[:, : D // 2]
        x[:, D // 2 :] += h[:, D // 2 :]
        return x


@pytest.mark.parametrize("cls", [Started, Reduced, StackedElsewhere, Halves])
def test_what_cannot_be_edited_is_said(cls: type[Written]) -> None:
    model, example = built(cls), PreNorm.example()
    before = model(*example)
    said = " ".join(map(str, transferred(model).warnings))
    assert re.search(r"residual branch of .* is left out.*as x \+ branch.*residual='off'", said)
    assert torch.equal(model(*example), before)


class Maximum(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.maximum(x, h)


class IndexPut(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return x.index_put((torch.arange(len(x)),), h, accumulate=True)


class Product(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.stack([x, h], -1) @ torch.ones(2)


class Viewed(Written):
    def step(self, x: Tensor, h: Tensor) -> Tensor:
        return torch.cat([x, h]).view(2, *x.shape).sum(0)


@pytest.mark.parametrize("cls", [Maximum, IndexPut, Product, Viewed])
def test_what_is_no_sum_gets_no_other_residual_connection(cls: type[Written]) -> None:
    """A connection that is put in beside the one that is there would count the features twice."""
    model, twin, example = built(cls), built(cls), PreNorm.example()
    plan = transferred(model)
    assert not plan.inserted
    assert [w.code for w in plan.warnings] == ["width-only"]
    assert "test_sums.py" in plan.warnings[0]
    assert "write x + branch" in plan.warnings[0]
    assert torch.equal(model(*example), twin(*example))


def test_a_layer_with_a_bias_stays_a_layer() -> None:
    product = ("addmm", (Ref(0), Ref(1), Ref(2)), {})
    assert expanded(*product, lambda arg: False) == [product]
    steps = expanded("addmm", (Ref(0), Ref(1), Ref(2)), {"beta": 0.5, "alpha": 2}, lambda arg: True)
    assert [op for op, _, _ in steps] == ["mm", "mul", "add"]
    assert steps[1][1] == (Ref(0), 0.5)
    assert steps[2][2] == {"alpha": 2}


def test_what_is_expanded_is_the_same_number() -> None:
    """The steps, run with torch itself, give what the operation gives."""
    torch.manual_seed(0)
    tensors = [torch.randn(4, 4) for _ in range(3)]
    for name, kwargs in (
        ("addcmul", {"value": 0.3}), ("addcdiv", {"value": 2}), ("rsub", {}), ("lerp", {}),
        ("addmm", {"beta": 0.5, "alpha": 2}),
    ):  # fmt: skip
        count = 2 if name == "rsub" else 3
        made: list[Tensor] = []
        args = tuple(Ref(i) for i in range(count))
        for op, given, options in expanded(name, args, kwargs, lambda arg: True):
            values = [
                tensors[a.node] if isinstance(a, Ref) else made[a.step] if hasattr(a, "step") else a
                for a in given
            ]
            made.append(getattr(torch, op)(*values, **options))
        wanted = getattr(torch, name)(*tensors[:count], **kwargs)
        torch.testing.assert_close(made[-1], wanted)
        assert math.isfinite(float(wanted.sum()))


def test_copies_keep_the_edited_sum() -> None:
    model = built(Stack)
    transferred(model)
    twin = copy.deepcopy(model)
    assert torch.equal(twin(*PreNorm.example()), model(*PreNorm.example()))
