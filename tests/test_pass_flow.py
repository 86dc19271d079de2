"""What flows where, on programs written by hand: `features`, `rows`, `flow`, `attention`,
`normalised`."""

from __future__ import annotations

import pytest
from programs import Sketch

from gnn_mup.analysis.attention import scores, softened
from gnn_mup.analysis.dims import Dims
from gnn_mup.analysis.flow import Flow
from gnn_mup.analysis.normalised import divided
from gnn_mup.analysis.stretches import Stretch, reshaped
from gnn_mup.ir.program import How, Kind, Program


def flow_of(program: Program) -> Flow:
    """The flow, told by `Dims` which axes are features."""
    flow = Flow(program)
    Dims(flow)
    return flow


def has(mask: int, value: int) -> bool:
    return bool(mask >> value & 1)


# ---- features and weights -----------------------------------------------------------------------


def test_a_buffer_is_data_once_a_weight_is_applied_to_it() -> None:
    p = Sketch()
    applied = p.linear(p.buffer(10, 7), "enc", 16)
    scaled = p.mul(p.param("w", 7, 7), p.buffer(7, 7))
    flow = flow_of(p.returns(applied))
    assert flow.data[applied]
    assert has(flow.contractions, applied)
    assert flow.pure(scaled)


def test_rows_of_a_parameter_that_layers_read_are_features() -> None:
    p = Sketch()
    source, target = p.index(40), p.index(40)
    table = p.param("nodes", 10, 8)
    h = p.messages(p.linear(table, "lin", 16), source, target)
    flow = flow_of(p.returns(p.linear(h, "dec", 3)))
    assert flow.features_of_parameters == {table}


def test_a_table_that_is_looked_up_at_once_is_a_weight() -> None:
    p = Sketch()
    table = p.param("table", 6, 16)
    x = p.rows(table, p.index(10))
    flow = flow_of(p.returns(p.linear(x, "dec", 3)))
    assert flow.features_of_parameters == frozenset()
    assert flow.pure(table)


def test_a_product_summed_over_the_weights_axis_is_a_contraction() -> None:
    p = Sketch()
    x = p.input(10, 7)
    product = p.mul(x, p.param("w", 7))
    dot, over_rows = p.reduce(product, 1), p.reduce(product, 0)
    flow = flow_of(p.returns(dot, over_rows))
    assert has(flow.contractions, dot)
    assert not has(flow.contractions, over_rows)
    assert not has(flow.contractions, product)


def test_features_times_features_are_a_dot_product_and_no_contraction() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    logits = p.contract(x, p.turned(p.linear(x, "key", 16)))
    flow = flow_of(p.returns(logits))
    assert has(flow.dot_products, logits)
    assert not has(flow.contractions, logits)
    assert not has(flow.mixing, logits)


# ---- rows of other nodes ------------------------------------------------------------------------


def test_messages_mix_and_pooling_does_not() -> None:
    p = Sketch()
    source, target, batch = p.index(40), p.index(40), p.index(10)
    x = p.linear(p.input(10, 7), "enc", 16)
    summed = p.messages(x, source, target)
    pooled = p.scatter(x, batch, 2)
    back = p.scatter(p.rows(pooled, batch), batch, 2)
    flow = flow_of(p.returns(summed, pooled, back))
    assert has(flow.mixing, summed)
    assert not has(flow.mixing, pooled)
    assert not has(flow.mixing, back)


def test_an_adjacency_mixes_and_a_layer_does_not() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 10)
    neighbours = p.contract(p.input(10, 10), x)
    layer = p.linear(x, "layer", 10)
    flow = flow_of(p.returns(neighbours, layer))
    assert has(flow.mixing, neighbours)
    assert not has(flow.mixing, layer)


def test_a_learned_adjacency_mixes_though_it_is_a_weight() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 10)
    mixed = p.contract(p.param("adjacency", 10, 10), x)
    flow = flow_of(p.returns(p.linear(mixed, "dec", 3)))
    assert has(flow.mixing, mixed)


def test_rows_gathered_by_a_search_mix_where_they_are_summed_for_each_row() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    near = p.step(Kind.POINTWISE, (10, 4), p.same(p.index(10, 4), (10, 4)))
    gathered = p.rows(x, near)
    neighbours, everything = p.reduce(gathered, 1), p.reduce(p.reduce(gathered, 0), 0)
    features = p.reduce(gathered, 2)
    flow = flow_of(p.returns(neighbours, everything, features))
    assert has(flow.mixing, neighbours)
    assert not has(flow.mixing, features)


def test_values_lie_on_edges_until_they_are_collected() -> None:
    p = Sketch()
    source, target = p.index(40), p.index(40)
    x = p.linear(p.input(10, 7), "enc", 16)
    message = p.rows(x, source)
    both = p.add(message, p.linear(p.input(40, 5), "edge", 16))
    rows = p.scatter(message, target, 10)
    flow = flow_of(p.returns(rows, both))
    assert [flow.on_edges[v] for v in (x, message, rows)] == [False, True, False]
    assert not flow.on_edges[both]


@pytest.mark.parametrize(
    ("old", "before", "after", "expected"),
    [
        (Stretch(1, 1, 12), (2, 12, 5), (24, 5), [Stretch(0, 1, 12)]),
        (Stretch(0, 12, 24), (24, 5), (2, 12, 5), [Stretch(0, 1, 2)]),
        (Stretch(0, 1, 2), (2, 12), (2, 3, 4), [Stretch(0, 1, 2)]),
    ],
)
def test_parts_of_axes_are_followed_through_a_reshape(
    old: Stretch, before: tuple[int, ...], after: tuple[int, ...], expected: list[Stretch]
) -> None:
    assert reshaped(old, before, after) == expected


# ---- what carries what on -----------------------------------------------------------------------


def test_identity_goes_through_sums_norms_and_activations_but_no_weight_or_neighbour() -> None:
    p = Sketch()
    source, target = p.index(40), p.index(40)
    x = p.linear(p.input(10, 7), "enc", 16)
    kept = p.pointwise(p.norm(p.add(x, p.linear(x, "layer", 16))))
    lost = [p.linear(x, "other", 16), p.messages(x, source, target)]
    flow = flow_of(p.returns(kept, *lost))
    assert has(flow.carried[kept], x)
    assert not any(has(flow.carried[value], x) for value in lost)


def test_a_gate_carries_nothing_and_a_norm_written_out_does() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    gated = p.mul(x, p.pointwise(p.linear(x, "gate", 16), How.SQUASH))
    size = p.pointwise(p.reshape(p.reduce(p.mul(x, x), 1, How.MEAN), 10, 1), How.RECIPROCAL)
    normed = p.mul(x, size)
    flow = flow_of(p.returns(gated, normed))
    assert not has(flow.carried[gated], x)
    assert has(flow.carried[normed], x)


def test_a_bias_is_no_summand_and_a_learned_state_is() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    biased = p.bias(x, "enc")
    whole = p.add(x, p.param("state", 10, 16))
    flow = flow_of(p.returns(biased, whole))
    summands = [
        [flow.is_summand(flow.program[v], o) for o in flow.program[v].operands]
        for v in (biased, whole)
    ]
    assert summands == [[True, False], [True, True]]


def test_the_degree_of_a_skip_is_lower_than_that_of_its_branch() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    branch = p.pointwise(p.linear(x, "layer", 16))
    total = p.add(x, branch)
    product = p.mul(x, branch)
    flow = flow_of(p.returns(total, product))
    assert [flow.degree[v] for v in (x, branch, total, product)] == [1, 2, 1, 2]
    assert [flow.height[v] for v in (x, branch, total)] == [1, 2, 2]


# ---- attention and averages ---------------------------------------------------------------------


def test_logits_lead_to_a_softmax() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    logits = p.contract(x, p.turned(x))
    p.pointwise(p.times(logits, 0.25), How.SOFTMAX, axis=1)
    decoded = p.contract(x, p.turned(x))
    p.pointwise(decoded, How.SQUASH)
    flow = flow_of(p.returns(decoded))
    assert softened(flow, logits)
    assert not softened(flow, decoded)


def test_what_only_weighs_is_a_score_and_an_activation_is_none() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    gate = p.pointwise(p.linear(x, "gate", 16), How.SQUASH)
    hidden = p.pointwise(p.linear(x, "hidden", 16), How.SQUASH)
    out = p.linear(p.add(p.mul(x, gate), hidden), "dec", 3)
    assert scores(flow_of(p.returns(out))) == {"gate.weight"}


def averages(weigh: str) -> bool:
    """Whether messages that are weighted, or a sum that is divided, is an average."""
    p = Sketch()
    source, target = p.index(40), p.index(40)
    x = p.linear(p.input(10, 7), "enc", 16)
    message = p.rows(x, source)
    ones = p.input(40, 1)
    count = p.scatter(ones, target, 10)
    if weigh == "softmax":
        logits = p.pointwise(p.linear(message, "att", 1), How.EXP)
        total = p.rows(p.scatter(logits, target, 10), target)
        message = p.mul(message, p.mul(logits, total, -1))
    elif weigh == "degree":
        message = p.mul(message, p.pointwise(p.rows(count, target), How.RECIPROCAL))
    elif weigh == "gate":
        message = p.mul(message, p.pointwise(p.linear(message, "gate", 16), How.SQUASH))
    rows = p.scatter(message, target, 10, How.MEAN if weigh == "mean" else How.SUM)
    out = p.mul(rows, count, -1) if weigh == "count" else rows
    flow = flow_of(p.returns(p.linear(out, "dec", 3)))
    return divided(flow, flow.program[rows])


@pytest.mark.parametrize("weigh", ["softmax", "degree", "mean", "count"])
def test_a_sum_is_an_average_where_something_divides_it(weigh: str) -> None:
    assert averages(weigh)


@pytest.mark.parametrize("weigh", ["nothing", "gate"])
def test_a_sum_is_none_where_nothing_does(weigh: str) -> None:
    assert not averages(weigh)
