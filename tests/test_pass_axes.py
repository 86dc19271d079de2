"""Axes by unification, on programs written by hand: `atoms`, `dims`, `growth`."""

from __future__ import annotations

import pytest
from programs import Sketch

from gnn_mup.analysis.atoms import Atoms
from gnn_mup.analysis.flow import Flow
from gnn_mup.analysis.growth import Growth
from gnn_mup.ir.program import How, Program


def grown(program: Program, *streams: int, **known: tuple[bool, ...]) -> Growth:
    """The axes of a program, decided; ``known`` by parameter."""
    told = {name.replace("__", "."): grows for name, grows in known.items()}
    growth = Growth(Flow(program), None, told)
    growth.settle(streams)
    return growth


def growing(growth: Growth) -> dict[str, tuple[bool, ...]]:
    """Of every parameter which of its axes grow."""
    return {
        node.param: tuple(growth.grows(dim) for dim in growth.of[node.index])
        for node in growth.program.graph
        if node.param is not None
    }


def one_class(growth: Growth, a: tuple[int, int], b: tuple[int, int]) -> bool:
    """Whether two axes (value, axis) are one and the same."""
    dims = [growth.atoms.expand(growth.of[value][axis]) for value, axis in (a, b)]
    return dims[0] == dims[1]


# ---- atoms --------------------------------------------------------------------------------------


def test_equal_sizes_are_not_yet_one_axis() -> None:
    atoms = Atoms()
    a, b = atoms.new(16), atoms.new(16)
    assert atoms.find(a) != atoms.find(b)
    atoms.unify((a,), (b,))
    assert atoms.find(a) == atoms.find(b)


def test_a_coarser_axis_is_split_by_a_finer_one() -> None:
    atoms = Atoms()
    whole, heads, rest = atoms.new(16), atoms.new(4), atoms.new(4)
    atoms.unify((whole,), (heads, rest))
    assert atoms.expand((whole,)) == atoms.expand((heads, rest))


def test_sizes_that_do_not_fit_are_left_alone() -> None:
    atoms = Atoms()
    a, b = atoms.new(6), atoms.new(4)
    atoms.unify((a,), (b,))
    assert atoms.expand((a,)) != atoms.expand((b,))


def test_factors_are_taken_from_the_front() -> None:
    atoms = Atoms()
    queue = [atoms.new(12)]
    first = atoms.take(queue, 3)
    assert first is not None
    assert (atoms.size[first[0]], atoms.size[queue[0]]) == (3, 4)
    assert atoms.take([atoms.new(6)], 4) is None


# ---- dims ---------------------------------------------------------------------------------------


def test_a_contraction_ties_the_weight_to_what_it_reads_and_not_to_what_it_makes() -> None:
    p = Sketch()
    x = p.input(10, 16)
    made = p.linear(x, "enc", 16)
    weight = x + 1
    growth = grown(p.returns(p.linear(made, "dec", 3)))
    assert one_class(growth, (weight, 1), (x, 1))
    assert one_class(growth, (weight, 0), (made, 1))
    assert not one_class(growth, (weight, 0), (weight, 1))


def test_a_sum_ties_its_operands_but_a_broadcast_axis_to_nothing() -> None:
    p = Sketch()
    a, b, c = p.input(10, 4), p.input(10, 4), p.input(1, 4)
    p.add(p.add(a, b), c)
    growth = grown(p.returns())
    assert one_class(growth, (a, 0), (b, 0))
    assert one_class(growth, (a, 1), (c, 1))
    assert not one_class(growth, (a, 0), (c, 0))


def test_a_reshape_keeps_the_factors_of_an_axis() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 12)
    heads = p.reshape(x, 10, 3, 4)
    back = p.reshape(heads, 10, 12)
    growth = grown(p.returns(back))
    assert one_class(growth, (back, 1), (x, 1))
    assert growth.atoms.expand(growth.of[heads][1] + growth.of[heads][2]) == growth.atoms.expand(
        growth.of[x][1]
    )


def test_channels_are_the_features_of_what_is_turned() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    turned = p.turned(x)
    growth = grown(p.returns(p.linear(x, "dec", 3)))
    assert growth.feature_axis[x] == 1
    assert growth.feature_axis[turned] == 0


def test_features_merged_with_rows_are_told_apart() -> None:
    p = Sketch()
    x = p.linear(p.input(2, 5, 7), "enc", 16)
    flat = p.reshape(x, 2, 80)
    growth = grown(p.returns(p.linear(flat, "dec", 3)))
    assert (flat, 1) in growth.merged
    assert (x, 2) not in growth.merged


# ---- growth -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("features", "out"), [(7, 3), (16, 3), (7, 16), (16, 16)])
def test_sizes_decide_nothing(features: int, out: int) -> None:
    p = Sketch()
    x = p.linear(p.input(10, features), "enc", 16)
    x = p.linear(p.pointwise(x), "hidden", 16)
    assert growing(grown(p.returns(p.linear(p.pointwise(x), "dec", out)))) == {
        "enc.weight": (True, False),
        "hidden.weight": (True, True),
        "dec.weight": (False, True),
    }


def test_a_model_that_returns_its_stream_returns_a_width() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    out = p.add(x, p.linear(p.linear(p.input(10, 5), "up", 20), "down", 16))
    program = p.returns(out)
    assert growing(grown(program))["down.weight"] == (False, True)
    assert growing(grown(program, out))["down.weight"] == (True, True)


def test_features_that_inner_ones_are_made_of_are_a_width_where_they_are_returned() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    program = p.returns(p.linear(p.linear(x, "up", 20), "down", 16), x)
    assert growing(grown(program))["up.weight"] == (True, True)
    p = Sketch()
    h = p.linear(p.linear(p.input(10, 7), "enc", 16), "head", 3)
    program = p.returns(p.add(p.linear(h, "more", 3), h))
    assert growing(grown(program))["more.weight"] == (False, False)


def test_embeddings_that_are_returned_are_the_width_where_there_is_no_other() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    assert growing(grown(p.returns(p.linear(x, "last", 3))))["last.weight"] == (False, True)
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    program = p.returns(p.add(x, p.linear(x, "hidden", 16)))
    assert growing(grown(program))["hidden.weight"] == (True, True)


def heads(read_alone: bool) -> tuple[bool, ...]:
    """Which axes of ``att`` grow in ``(x.view(N, 3, 4) * att).sum(-1)``."""
    p = Sketch()
    x = p.reshape(p.linear(p.input(10, 7), "enc", 12), 10, 3, 4)
    scores = p.reduce(p.mul(x, p.param("att", 3, 4)), -1)
    weighed = p.mul(x, p.reshape(p.pointwise(scores, How.SQUASH), 10, 3, 1))
    if read_alone:
        weighed = p.add(weighed, p.reshape(p.linear(scores, "mix", 12), 10, 3, 4))
    return growing(grown(p.returns(p.linear(p.reshape(weighed, 10, 12), "dec", 2))))["att"]


def test_heads_do_not_grow_unless_they_are_summed_alone() -> None:
    assert heads(read_alone=False) == (False, True)
    assert heads(read_alone=True) == (True, True)


def test_an_axis_that_numbers_tensors_of_a_list_does_not_grow() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    states = p.stack(x, p.pointwise(x))
    weighed = p.reduce(p.mul(states, p.param("mix", 2, 1, 1)), 0)
    assert growing(grown(p.returns(p.linear(weighed, "dec", 3))))["mix"][0] is False


def test_classes_of_a_softmax_are_no_width() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    assigned = p.pointwise(p.linear(x, "clusters", 5), How.SOFTMAX, axis=1)
    pooled = p.contract(p.turned(assigned), x)
    growth = grown(p.returns(p.linear(pooled, "dec", 3)))
    assert growing(growth)["clusters.weight"] == (False, True)


def test_side_by_side_grows_if_one_side_does() -> None:
    p = Sketch()
    x = p.input(10, 7)
    wide = p.join(p.linear(x, "enc", 16), x)
    growth = grown(p.returns(p.linear(wide, "dec", 3)))
    assert growing(growth)["dec.weight"] == (False, True)
    p = Sketch()
    narrow = p.join(p.input(10, 7), p.input(10, 9))
    growth = grown(p.returns(p.linear(p.linear(narrow, "enc", 16), "dec", 3)))
    assert growing(growth)["enc.weight"] == (True, False)


def test_what_two_sizes_show_goes_before_what_was_inferred() -> None:
    p = Sketch()
    x = p.linear(p.input(10, 7), "enc", 16)
    program = p.returns(p.linear(p.linear(x, "inner", 5), "dec", 3))
    assert growing(grown(program))["inner.weight"] == (True, True)
    shown = growing(grown(program, inner__weight=(False, True)))
    assert shown["inner.weight"] == (False, True)
    assert shown["dec.weight"] == (False, False)


def test_an_inner_size_of_its_own_raises_a_doubt_and_a_multiple_does_not() -> None:
    def doubts(inner: int) -> set[int]:
        p = Sketch()
        x = p.linear(p.input(10, 7), "enc", 16)
        growth = grown(p.returns(p.linear(p.linear(x, "inner", inner), "dec", 3)))
        return set(growth.doubt(16).values())

    assert doubts(11) == {11}
    assert doubts(32) == doubts(8) == doubts(7) == set()


def test_a_buffer_of_another_size_than_the_width_is_fixed() -> None:
    def grows(size: int) -> bool:
        p = Sketch()
        basis = p.linear(p.buffer(10, size), "basis", 16)
        x = p.add(p.linear(p.input(10, 7), "enc", 16), basis)
        growth = grown(p.returns(p.linear(x, "dec", 3)))
        growth.doubt(16)
        return growing(growth)["basis.weight"][1]

    assert not grows(6)
    assert grows(16)
