"""Whatever holds tensors: all of them are found, and copied with it."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch_geometric.data import Data, HeteroData

from gnn_mup import apply_transfer, plan_transfer
from gnn_mup.ir.example import as_call, probe, unchecked_call
from gnn_mup.ir.values import cloned_value, tensors_in


class Named(NamedTuple):
    x: Tensor
    y: Any = None


@dataclass
class Plain:
    x: Tensor
    y: Any = None


@dataclass(slots=True)
class Slotted:
    x: Tensor
    y: Any = None


@dataclass(frozen=True, slots=True)
class Frozen:
    x: Tensor
    y: Any = None


class Registered:
    """A container that only its own functions can look into."""

    __slots__ = ("_held",)

    def __init__(self, x: Tensor) -> None:
        self._held = x


pytree.register_pytree_node(
    Registered, lambda held: ([held._held], None), lambda parts, _: Registered(*parts)
)


def _hetero(x: Tensor, y: Tensor) -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].x = x, y
    return data


HOLDERS = {
    "tuple": lambda x, y: (x, (1, "text", y)),
    "list": lambda x, y: [x, None, [y]],
    "dict": lambda x, y: {"x": x, "y": {"z": y}},
    "ordered": lambda x, y: OrderedDict(x=x, y=y),
    "default": lambda x, y: defaultdict(list, x=[x, y]),
    "deque": lambda x, y: deque([x, y]),
    "named tuple": Named,
    "data class": Plain,
    "slots": Slotted,
    "frozen": Frozen,
    "nested": lambda x, y: Named(Plain(x, 3), [Frozen(y)]),  # type: ignore[arg-type]
    "pytree": lambda x, y: (Registered(x), Registered(y)),
    "data": lambda x, y: Data(x=x, y=y),
    "hetero": _hetero,
    "structseq": lambda x, y: (torch.return_types.max((x, y)),),
    "packed": lambda x, y: (nn.utils.rnn.PackedSequence(x, torch.ones(1)), y),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_finds_and_copies(make: Any) -> None:
    x, y = torch.ones(3), torch.zeros(2)
    value = make(x, y)
    found = list(tensors_in(value))
    assert [sum(t is wanted for t in found) for wanted in (x, y)] == [1, 1]
    copied = cloned_value(value)
    assert type(copied) is type(value)
    others = list(tensors_in(copied))
    assert [tuple(t.shape) for t in others] == [tuple(t.shape) for t in found]
    for tensor in others:
        tensor.fill_(7.0)
    assert x.tolist() == [1.0] * 3
    assert y.tolist() == [0.0] * 2


def test_one_tensor_in_two_places_stays_one() -> None:
    x = torch.ones(2, requires_grad=True)
    value = {"a": x, "b": [x]}
    copied = cloned_value(value)
    assert len(list(tensors_in(value))) == 1
    assert copied["a"] is copied["b"][0]
    assert copied["a"] is not x
    assert copied["a"].requires_grad


def test_a_value_that_holds_itself() -> None:
    value: dict[str, Any] = {"x": torch.ones(2)}
    value["self"] = value
    assert len(list(tensors_in(value))) == 1
    assert cloned_value(value)["x"] is not value["x"]


def test_what_holds_no_tensor_is_handed_on() -> None:
    model = nn.Linear(2, 2)
    value = (model, object(), len, "text", [1, 2])
    assert list(tensors_in(value)) == []
    assert cloned_value(value) is value


class Takes(nn.Module):
    """Changes what it is given, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.lin, self.dec = nn.Linear(5, 16), nn.Linear(16, 16), nn.Linear(16, 3)

    def forward(self, batch: Any) -> Tensor:
        x = self.enc(batch.x.mul_(2.0))
        return self.dec(x + self.lin(x).relu())


@pytest.mark.parametrize("holder", [Named, Plain, Slotted, Frozen])
@pytest.mark.parametrize("alone", [True, False])
def test_examples_of_any_kind_stay_as_they_are(holder: Any, alone: bool) -> None:
    batch = holder(torch.randn(6, 5))
    before = batch.x.clone()
    plan = plan_transfer(Takes(), batch if alone else (batch,), base="paper")
    assert torch.equal(batch.x, before)
    assert plan.params["enc.weight"].kind == "data-in"
    assert apply_transfer(Takes(), batch if alone else (batch,), base="paper").plan.depth == 1


class TakesBatch(nn.Module):
    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return x


def test_missing_batch_is_made_where_the_nodes_are() -> None:
    data = Data(x=torch.empty(4, 2, device="meta"))
    data.num_nodes = 4
    assert unchecked_call(TakesBatch(), data)[1]["batch"].is_meta
    made = as_call(TakesBatch(), Data(x=torch.ones(4, 2)))[1]["batch"]
    assert made.device.type == "cpu"
    assert made.tolist() == [0] * 4


class Gathers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 5)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, edge_index[1], self.lin(x)[edge_index[0]])


def test_the_probe_is_made_for_the_model() -> None:
    model = Gathers()
    for suited in (model.double(), model.to("meta")):
        fields = probe(suited)[1]
        assert fields["x"].dtype is torch.float64
        assert fields["edge_index"].dtype is torch.long
        assert {tensor.device for tensor in fields.values()} == {next(suited.parameters()).device}


class Logs(nn.Module):
    """Keeps what it saw, in containers of containers."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(5, 5)
        self.log: dict[str, Any] = {"sizes": [], "deep": ({"seen": set()},)}
        self.queue: deque[int] = deque(maxlen=2)

    def forward(self, x: Tensor) -> Tensor:
        self.log["sizes"].append(len(x))
        self.log["deep"][0]["seen"].add(len(x))
        self.queue.append(len(x))
        return self.lin(x)


def test_a_trace_leaves_nothing_in_containers() -> None:
    model = Logs()
    model.queue.append(3)
    sizes = model.log["sizes"]
    plan_transfer(model, torch.ones(4, 5), base="paper")
    assert model.log == {"sizes": [], "deep": ({"seen": set()},)}
    assert model.log["sizes"] is sizes
    assert list(model.queue) == [3]
