"""Sums and streams, on programs written by hand: `forms`, `streams`, `nesting`, `overlayers`,
`levels`, `edits`, `layers`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs import Sketch, stack_of_layers

from gnn_mup.analysis.edits import edits_of
from gnn_mup.analysis.forms import Verdict
from gnn_mup.analysis.reading import Reading
from gnn_mup.analysis.streams import Streams
from gnn_mup.ir.program import How

D = 16


class Net(Sketch):
    """A sketch with a graph and an encoder; layers are written into ``x``."""

    def __init__(self, nodes: int = 10) -> None:
        super().__init__()
        self.source, self.target = self.index(40), self.index(40)
        self.x = self.start = self.linear(self.input(nodes, 7), "enc", D)

    def layer(self, value: int, name: str, mixes: bool = True) -> int:
        value = self.messages(value, self.source, self.target) if mixes else value
        return self.pointwise(self.linear(value, name, D))

    def read(self) -> Streams:
        return Reading(self.returns(self.linear(self.x, "dec", 3))).streams


def verdicts(streams: Streams) -> list[Verdict]:
    return [s.verdict for s in streams.sums]


def repeated(write: Callable[[Net, int], int], depth: int = 3) -> Streams:
    """The streams of a net whose layer number i is written by a function."""
    net = Net()
    for i in range(depth):
        net.x = write(net, i)
    return net.read()


# ---- the table of verdicts ----------------------------------------------------------------------


def step(n: Net, i: int) -> int:
    return n.add(n.x, n.layer(n.x, f"l.{i}"), at="x")


def post_norm(n: Net, i: int) -> int:
    return n.norm(n.add(n.times(n.x, 2.0), n.layer(n.x, f"l.{i}"), at="x"))


def scaled(n: Net, i: int) -> int:
    return n.add(n.times(n.x, 0.5), n.layer(n.x, f"l.{i}"), at="x")


def gate(n: Net, i: int) -> int:
    g = n.pointwise(n.linear(n.x, f"gate.{i}", D), How.SQUASH)
    new = n.mul(g, n.layer(n.x, f"l.{i}"))
    return n.add(new, n.mul(n.plus(g, 1.0, -1.0), n.x), at="x")


def gate_as_a_difference(n: Net, i: int) -> int:
    g = n.pointwise(n.linear(n.x, f"gate.{i}", D), How.SQUASH)
    change = n.add(n.layer(n.x, f"l.{i}"), n.x, constants=(1.0, -1.0))
    return n.add(n.x, n.mul(g, change), at="x")


def gate_written_out(n: Net, i: int) -> int:
    g = n.pointwise(n.linear(n.x, f"gate.{i}", D), How.SQUASH)
    new, old = n.mul(g, n.layer(n.x, f"l.{i}")), n.mul(g, n.x)
    return n.add(new, n.x, old, at="x", constants=(1.0, 1.0, -1.0))


def excited(n: Net, i: int) -> int:
    g = n.pointwise(n.linear(n.x, f"gate.{i}", D), How.SQUASH)
    return n.add(n.x, n.mul(g, n.layer(n.x, f"l.{i}")), n.mul(g, n.x), at="x")


def initial(n: Net, i: int) -> int:
    return n.layer(n.add(n.layer(n.x, f"l.{i}"), n.start, at="x"), f"m.{i}", mixes=False)


def learned(n: Net, i: int) -> int:
    return n.pointwise(n.add(n.layer(n.x, f"l.{i}"), n.linear(n.x, f"skip.{i}", D), at="x"))


def merge(n: Net, i: int) -> int:
    return n.add(n.pointwise(n.x), n.norm(n.x), at="x")


@pytest.mark.parametrize(
    ("write", "verdict"),
    [
        (step, Verdict.STEP),
        (post_norm, Verdict.STEP),
        (scaled, Verdict.SCALED),
        (gate, Verdict.GATE),
        (gate_as_a_difference, Verdict.GATE),
        (gate_written_out, Verdict.GATE),
        (excited, Verdict.STEP),
        (initial, Verdict.INITIAL),
        (learned, Verdict.LEARNED),
        (merge, Verdict.MERGE),
    ],
)
@pytest.mark.parametrize("depth", [2, 3, 5])
def test_verdicts(write: Callable[[Net, int], int], verdict: Verdict, depth: int) -> None:
    found = [s for s in repeated(write, depth).sums if len(s.adds) == 1 and not s.lone]
    assert [s.verdict for s in found] == [verdict] * depth


def test_the_coefficient_of_a_scaled_skip_is_kept() -> None:
    assert [s.coefficient for s in repeated(scaled).sums[1:]] == [0.5, 0.5]


def test_a_stream_and_its_branch_are_told_apart_in_either_order() -> None:
    def turned(n: Net, i: int) -> int:
        return n.add(n.layer(n.x, f"l.{i}"), n.x, at="x")

    for write, place in ((step, 0), (turned, 1)):
        found = repeated(write).sums[-1]
        assert found.stream is found.leaves[place]
        assert found.branches == [found.leaves[1 - place]]


def test_three_summands_in_one_expression_are_one_sum() -> None:
    def attention_and_mlp(n: Net, i: int) -> int:
        inner = n.add(n.x, n.layer(n.x, f"a.{i}"), at="x")
        return n.add(inner, n.layer(n.x, f"b.{i}", mixes=False), at="x")

    streams = repeated(attention_and_mlp)
    assert [len(s.leaves) for s in streams.sums] == [3, 3, 3]
    assert all(len(s.branches) == 2 for s in streams.sums)
    assert streams.depth == 3


def test_the_same_written_as_two_sums_is_two_steps_and_the_same_depth() -> None:
    def two_sums(n: Net, i: int) -> int:
        n.x = n.add(n.x, n.layer(n.x, f"a.{i}"), at="x")
        return n.add(n.x, n.layer(n.x, f"b.{i}", mixes=False), at="y")

    streams = repeated(two_sums)
    assert verdicts(streams) == [Verdict.STEP] * 6
    assert streams.depth == 3


def test_a_bias_is_no_sum() -> None:
    assert repeated(lambda n, i: n.bias(n.layer(n.x, f"l.{i}"), f"l.{i}")).sums == []


def test_layers_written_out_one_by_one_are_steps_too() -> None:
    streams = repeated(lambda n, i: n.add(n.x, n.layer(n.x, f"l.{i}"), at=f"x{i}"))
    assert verdicts(streams) == [Verdict.STEP] * 3


def test_a_skip_from_the_input_itself_is_no_stream() -> None:
    p = Sketch()
    x = p.input(10, D)
    out = p.add(x, p.linear(p.pointwise(p.linear(x, "a", D)), "b", D), at="x")
    assert verdicts(Reading(p.returns(p.linear(out, "dec", 3))).streams) == [Verdict.NONE]


# ---- sums inside others, beside others ----------------------------------------------------------


def test_a_skip_round_all_layers_is_a_long_one() -> None:
    net = Net()
    for i in range(3):
        net.x = step(net, i)
    net.x = net.add(net.start, net.x, at="round")
    assert verdicts(net.read()) == [*[Verdict.STEP] * 3, Verdict.LONG]


def test_a_sum_inside_a_branch_is_no_step() -> None:
    def with_inner(n: Net, i: int) -> int:
        h = n.layer(n.x, f"a.{i}")
        h = n.add(h, n.layer(h, f"b.{i}", mixes=False), at="inner")
        return n.add(n.x, n.linear(h, f"c.{i}", D), at="x")

    streams = repeated(with_inner)
    assert [s.residual for s in streams.sums] == [False, True] * 3
    assert streams.depth == 3


# ---- over layers --------------------------------------------------------------------------------


def jumping(divide: bool, skip: bool) -> Streams:
    """States of all layers, added up behind them."""
    net, states = Net(), []
    for i in range(4):
        net.x = step(net, i) if skip else net.layer(net.x, f"l.{i}")
        states.append(net.x)
    total = states[0]
    for state in states[1:]:
        total = net.add(total, state, at="total")
    net.x = net.times(total, 0.25) if divide else total
    return net.read()


@pytest.mark.parametrize("skip", [True, False])
def test_a_sum_over_layers_is_found_and_a_mean_is_none(skip: bool) -> None:
    over = Verdict.OVER_LAYERS if skip else Verdict.READOUTS
    assert jumping(divide=False, skip=skip).sums[-1].verdict is over
    assert jumping(divide=True, skip=skip).sums[-1].verdict is Verdict.NONE


def test_a_stack_that_is_added_up_is_a_sum_and_its_mean_is_divided() -> None:
    def stacked(how: How) -> Verdict:
        net, states = Net(), []
        for i in range(3):
            net.x = net.layer(net.x, f"l.{i}")
            states.append(net.x)
        net.x = net.reduce(net.stack(*states), 0, how)
        return net.read().sums[-1].verdict

    assert stacked(How.SUM) is Verdict.READOUTS
    assert stacked(How.MEAN) is Verdict.NONE


# ---- depth and edits ----------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 4, 6])
def test_the_depth_is_the_number_of_steps_on_the_stream(depth: int) -> None:
    assert Reading(stack_of_layers(depth)).depth == depth
    assert Reading(stack_of_layers(depth, mixes=False)).depth == depth


def test_every_branch_is_scaled_once_and_no_stream() -> None:
    streams = repeated(step)
    edits = edits_of(streams, 1 / 3)
    assert [(e.add, e.operand, e.factor) for e in edits] == [
        (s.root, 1, 1 / 3) for s in streams.sums
    ]


@pytest.mark.parametrize("write", [gate, gate_as_a_difference, scaled, initial, learned])
def test_what_is_no_step_gets_no_factor(write: Callable[[Net, int], int]) -> None:
    assert edits_of(repeated(write), 1 / 3) == []


def test_summands_that_all_carry_the_stream_are_divided_by_their_number() -> None:
    edits = edits_of(repeated(merge), 1 / 3)
    assert {(e.operand, e.factor) for e in edits} <= {(None, 0.5)}


def test_layers_side_by_side_are_dense_and_heads_are_not() -> None:
    net = Net()
    for i in range(3):
        h = net.messages(net.x, net.source, net.target)
        net.x = net.join(net.x, net.linear(h, f"l.{i}", D))
    assert Reading(net.returns(net.linear(net.x, "dec", 3))).dense_joins
    net = Net()
    for i in range(3):
        net.x = net.join(net.linear(net.x, f"a.{i}", 8), net.linear(net.x, f"b.{i}", 8))
    assert not Reading(net.returns(net.linear(net.x, "dec", 3))).dense_joins
