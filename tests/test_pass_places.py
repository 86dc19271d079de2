"""From uses to places and words, on programs written by hand: `uses`, `reading`, `places`, `sizes`,
`limits`, `checks`."""

from __future__ import annotations

import pytest
from programs import Sketch, stack_of_layers

from gnn_mup.analysis.checks import warnings_of
from gnn_mup.analysis.limits import changing_constants, no_decoder, width_only
from gnn_mup.analysis.places import Places
from gnn_mup.analysis.reading import Reading
from gnn_mup.analysis.sizes import compare_depths
from gnn_mup.analysis.uses import Uses
from gnn_mup.analysis.uses import reshaped as reshaped_axes
from gnn_mup.ir.program import How, Program
from gnn_mup.rules.notes import Code

D = 16


def placed(program: Program) -> dict[str, str]:
    """Role, kind and fan-in of every parameter, as one text."""
    reading = Reading(program)
    shapes = {n.param: n.shape for n in program.graph if n.param is not None}
    found = Places(reading).place(shapes)
    return {k: f"{p.role.value} {p.kind.value} {p.fan_in:g}" for k, p in found.items()}


def codes(program: Program) -> set[Code]:
    return {note.code for note in warnings_of(Reading(program))}


# ---- uses ---------------------------------------------------------------------------------------


def use_of(program: Program, name: str) -> tuple[str, tuple[int, ...], tuple[int, ...], int]:
    (use,) = Uses(Reading(program).flow).by_param[name]
    return use.how, use.in_axes, use.out_axes, use.fan_in


def test_which_axis_is_summed_is_followed_through_views() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "out_in", D)
    x = p.contract(x, p.param("in_out", D, D))
    program = p.returns(p.linear(x, "dec", 3))
    assert use_of(program, "out_in.weight") == ("matrix", (1,), (0,), 7)
    assert use_of(program, "in_out") == ("matrix", (0,), (1,), D)


def test_a_constant_is_one_thing_wherever_it_stands() -> None:
    def constant(where: str) -> float:
        p = Sketch()
        x, weight = p.input(10, 7), p.param("w", 7, D)
        weight = p.times(weight, 0.25) if where == "weight" else weight
        out = p.contract(x, weight)
        out = p.times(out, 0.25) if where == "result" else out
        (use,) = Uses(Reading(p.returns(p.linear(p.pointwise(out), "dec", 3))).flow).by_param["w"]
        return use.constant

    assert constant("weight") == constant("result") == 0.25
    assert constant("nowhere") == 1.0


def test_tables_vectors_and_sums_of_products_are_used_otherwise() -> None:
    p = Sketch()
    x = p.rows(p.param("table", 6, D), p.index(10))
    x = p.add(x, p.param("bias", D))
    score = p.reduce(p.mul(x, p.param("row", D)), 1)
    program = p.returns(p.linear(x, "dec", 3), score)
    assert use_of(program, "table") == ("lookup", (), (1,), 1)
    assert use_of(program, "bias") == ("vector", (), (0,), 1)
    assert use_of(program, "row") == ("matrix", (0,), (), D)


def test_axes_of_weights_merge_and_split_in_order() -> None:
    axes = [{"w": ((0, 4),)}, {"w": ((1, 6),)}]
    assert reshaped_axes((4, 6), axes, (24,)) == [{"w": ((0, 4), (1, 6))}]
    assert reshaped_axes((4, 6), axes, (2, 2, 6)) == [
        {"w": ((0, 2),)}, {"w": ((0, 2),)}, {"w": ((1, 6),)}
    ]  # fmt: skip


# ---- places -------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("features", "out"), [(7, 3), (D, D), (2 * D, 3), (7, D // 2)])
def test_a_stack_of_layers_at_every_size(depth: int, features: int, out: int) -> None:
    found = placed(stack_of_layers(depth, D, features, out))
    assert found == {
        "enc.weight": f"encoder data-in {features}",
        **{f"layers.{i}.weight": f"residual width-to-width {D}" for i in range(depth)},
        "dec.weight": f"decoder width-out {D}",
    }


def test_between_encoder_and_branches_is_hidden() -> None:
    p = Sketch()
    x = p.pointwise(p.linear(p.input(10, 7), "enc", D))
    x = p.linear(x, "before", D)
    for i in range(2):
        x = p.add(x, p.linear(x, f"l.{i}", D), at="x")
    found = placed(p.returns(p.linear(p.pointwise(p.linear(x, "after", D)), "dec", 3)))
    assert found["before.weight"] == found["after.weight"] == f"hidden width-to-width {D}"
    assert found["l.0.weight"] == f"residual width-to-width {D}"


def test_a_vector_on_the_stream_is_told_from_one_in_a_branch() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", D)
    for i in range(3):
        h = p.bias(p.linear(x, f"l.{i}", D), f"l.{i}")
        x = p.mul(p.add(x, h, at="x"), p.param(f"gains.{i}", D))
    found = placed(p.returns(p.linear(x, "dec", 3)))
    assert found["gains.0"] == found["gains.2"] == "stream vector 1"
    assert found["l.1.bias"] == "residual vector 1"


def test_edge_features_in_a_branch_are_data_in_though_as_wide() -> None:
    p = Sketch()
    source, target, edges = p.index(40), p.index(40), p.input(40, D)
    x = p.linear(p.input(10, 7), "enc", D)
    for i in range(2):
        message = p.add(p.rows(x, source), p.linear(edges, f"edge.{i}", D))
        h = p.linear(p.scatter(p.pointwise(message), target, 10), f"l.{i}", D)
        x = p.add(x, h, at="x")
    found = placed(p.returns(p.linear(x, "dec", 3)))
    assert found["edge.0.weight"] == found["edge.1.weight"] == f"residual data-in {D}"
    assert found["l.0.weight"] == f"residual width-to-width {D}"


def test_a_matrix_that_a_layer_makes_is_generated() -> None:
    p = Sketch()
    edges, source, target = p.input(40, 5), p.index(40), p.index(40)
    x = p.linear(p.input(10, 7), "enc", 8)
    matrices = p.reshape(p.linear(edges, "net", 64), 40, 8, 8)
    rows = p.reshape(p.rows(x, source), 40, 1, 8)
    left = p.contract(rows, matrices)
    x = p.scatter(p.reshape(left, 40, 8), target, 10)
    found = placed(p.returns(p.linear(x, "dec", 3)))
    assert "generated" in found["net.weight"]
    assert "generated" not in found["enc.weight"]


def test_what_no_output_needs_is_placed_by_its_shape() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", D)
    p.param("idle", D, 5)
    assert placed(p.returns(p.linear(x, "dec", 3)))["idle"] == "hidden width-to-width 5"


# ---- sizes: readings of two depths --------------------------------------------------------------


def scaled_stack(depth: int, constant: float) -> Reading:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", D)
    for i in range(depth):
        x = p.add(x, p.times(p.linear(x, f"l.{i}", D), constant), at="x")
    x = p.add(x, p.pointwise(p.linear(x, "once", D)), at="once")
    return Reading(p.returns(p.linear(x, "dec", 3)))


def test_another_depth_shows_which_sums_are_repeated() -> None:
    compared = compare_depths(scaled_stack(4, 1.0), [scaled_stack(6, 1.0)])
    assert len(compared.repeated) == 1
    assert len(compared.fixed) == 1


def test_another_depth_shows_what_a_constant_stands_for() -> None:
    own, fixed = scaled_stack(4, 1 / 4), scaled_stack(4, 1 / 4)
    compare_depths(own, [scaled_stack(8, 1 / 8)])
    compare_depths(fixed, [scaled_stack(8, 1 / 4)])
    assert {s.own for s in own.streams.steps} == {1.0}
    assert {s.own for s in fixed.streams.steps} == {0.0}


def test_models_of_one_depth_show_nothing() -> None:
    compared = compare_depths(scaled_stack(4, 1.0), [scaled_stack(4, 1.0)])
    assert not compared.repeated
    assert not compared.fixed


# ---- limits and checks --------------------------------------------------------------------------


def test_a_stream_has_no_limit_and_no_stream_has_one() -> None:
    assert width_only(Reading(stack_of_layers()), (), "auto", "") == []
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", D)
    x = p.pointwise(p.linear(p.pointwise(x), "hidden", D))
    (note,) = width_only(Reading(p.returns(p.linear(x, "dec", 3))), (), "auto", "")
    assert note.code is Code.WIDTH_ONLY


def test_constants_that_change_from_layer_to_layer_are_seen() -> None:
    def constants(*numbers: float) -> list[list[float]]:
        p = Sketch()
        x = p.linear(p.input(10, 7), "enc", D)
        for i, number in enumerate(numbers):
            x = p.add(x, p.times(p.linear(x, f"l.{i}", D), number), at="x")
        return changing_constants(Reading(p.returns(p.linear(x, "dec", 3))))

    assert constants(1.0, 0.5, 0.25) == [[1.0, 0.5, 0.25]]
    assert constants(0.5, 0.5, 0.5) == []


def test_a_width_that_is_returned_is_said_and_a_decoder_is_not() -> None:
    def notes(out: int | None) -> list[Code]:
        p = Sketch()
        x = p.linear(p.input(10, 7), "enc", D)
        for i in range(2):
            x = p.add(x, p.linear(x, f"l.{i}", D), at="x")
        x = x if out is None else p.linear(x, "dec", out)
        return [note.code for note in no_decoder(Reading(p.returns(x)), {})]

    assert notes(None) == [Code.NO_DECODER]
    assert notes(D) == [Code.WIDE_DECODER]
    assert notes(3) == []


def pooled(how: How) -> Program:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", D)
    return p.returns(p.linear(p.scatter(x, p.index(10), 2, how), "dec", 3))


def test_sum_pooling_is_said_and_mean_pooling_is_fine() -> None:
    assert Code.SUM_POOLING in codes(pooled(How.SUM))
    assert Code.SUM_POOLING not in codes(pooled(How.MEAN))


@pytest.mark.parametrize(("divisor", "said"), [(None, True), (1 / D, False)])
def test_dot_products_as_decoder(divisor: float | None, said: bool) -> None:
    p = Sketch()
    x = p.linear(p.pointwise(p.linear(p.input(10, 7), "enc", D)), "last", D)
    logits = p.contract(x, p.turned(x))
    logits = logits if divisor is None else p.times(logits, divisor)
    assert (Code.DOT_PRODUCT_DECODER in codes(p.returns(logits))) == said


@pytest.mark.parametrize(("how", "said"), [(How.ACTIVATION, True), (How.POSITIVE, False)])
def test_an_activation_on_the_stream(how: How, said: bool) -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", D)
    for i in range(3):
        x = p.pointwise(p.add(x, p.linear(x, f"l.{i}", D), at="x"), how)
    assert (Code.WIDTH_ONLY in codes(p.returns(p.linear(x, "dec", 3)))) == said


def test_an_output_that_no_parameter_leads_to_is_said() -> None:
    p = Sketch()
    x = p.input(10, 7)
    p.linear(x, "enc", D)
    assert Code.LOST_OUTPUT in codes(p.returns(p.pointwise(x)))
    assert Code.LOST_OUTPUT not in codes(stack_of_layers())
