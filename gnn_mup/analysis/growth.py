"""Which axes grow with the width: those that weights own, that something sums over, and that no
input and no output fixes. Sizes decide nothing; where nothing else shows it they raise a doubt."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property

from .atoms import Dim
from .extend import Weight
from .flow import Flow
from .origins import Origins


def list_of(name: str) -> str:
    """The list a parameter's layer stands in: 'norms.3.weight' and 'norm_3.weight' are such."""
    return re.sub(r"\d+", "*", name)


class Growth(Origins):
    """The axes of a program, and which of them grow."""

    def __init__(
        self,
        flow: Flow,
        described: Mapping[str, Weight] | None = None,
        known: Mapping[str, tuple[bool, ...]] | None = None,
    ) -> None:
        super().__init__(flow, described)
        self.known = known or {}
        self.growing: set[int] = set()
        self._fixed: set[int] = set()
        self.bound: dict[int, int] = {}
        """Classes that were taken as bound to an input because they are as large as its rows."""
        flow.is_listed, flow.same_rows = self._is_listed, self._same_rows
        flow.is_column, flow.is_indexed = self._is_column, self._is_indexed

    def settle(self, streams: Iterable[int] = ()) -> None:
        """Decide which classes are fixed. ``streams`` are values on residual streams: a model that
        returns its stream returns a width."""
        self.growing = self.owned & self._read & self._made
        flowing = self.atoms.classes(self.of[s][-1] for s in streams)
        ends = self._ends - flowing
        rows = self.given | self.atoms.classes(self.counted) | self._own_rows
        read = self._linked(self.atoms.classes(self.summed), self.part)  # or parts of it are
        rows |= self.atoms.classes(self.shared) - read
        fixed = rows | self._heads(rows)
        ends = {a for a in ends if not self._one_of_a_list(a)}
        inner = self.growing - fixed - self._only_made
        # Features that a layer makes inner ones of are no last ones.
        ends -= set().union(*(read for read, made in self._read_and_made if made & inner - ends))
        for new, (whole, parts) in zip(self.made_of, self.links, strict=True):
            if new in self.joins and parts & inner - ends:  # features side by side are an output
                ends = ends - whole
        if inner - ends or not inner & self.atoms.classes(self.summed):
            fixed, inner = fixed | ends, inner - ends  # else embeddings: the only width there is
        self.growing = inner
        self._fixed = fixed
        self._derive(fixed)
        self._follow_known()

    def _follow_known(self) -> None:
        """What models of another size show goes before what was inferred. Of an axis that grows as
        a whole the factors are told apart as before; one of them grows."""
        known = self._known
        for atom, grows in known.items():
            (self.growing.add if grows else self.growing.discard)(atom)
        for whole in self._known_wholes:
            if not self.growing & set(whole):
                self.growing |= set([a for a in whole if a not in known][-1:])

    def doubt(self, width: int) -> dict[int, int]:
        """Classes whose growth nothing shows, with their sizes: inner sizes of a layer's own. One
        that comes from a buffer or a new tensor grows if it, or the smallest axis of a weight that
        it is a factor of, is as large as the width; one as large
        as an input or output, and no multiple of the width, is taken as bound to that; others grow.
        Returns those of the last sort that are neither a multiple nor a part of the width; `bound`
        has the sort before."""
        bound = self._returned | self.given
        sizes, made = {self.atoms.size[a] for a in bound}, self._only_made
        meant = self._returned | self.columns
        owned, known = self.owned, self._known
        # As large as its parts are, also where it is cut into them, and one of them is a width.
        together = self.atoms.classes((atom,) for atom in self.joins)
        widths = {a for a in owned & self.growing if not width % self.atoms.size[a]}
        together |= self.atoms.classes(self.made_of[atom] for atom in self.part
                                       if widths & self.atoms.classes([(atom,)]))  # fmt: skip
        open_: dict[int, int] = {}
        for atom in sorted(made & owned - self._fixed - known.keys()):
            same = width in (self.atoms.size[atom], self._whole.get(atom))
            (self.growing.add if same else self.growing.discard)(atom)
        for atom in sorted(self.growing & owned - made - together - known.keys()):
            both = (self.atoms.size[atom], self._whole.get(atom, 0))
            size = next((n for n in both if n and width and width % n and 2 * n % width), 0)
            if size:
                if size in sizes:
                    self.growing.discard(atom)
                    self.bound |= {} if self._next_to(atom, meant) else {atom: size}
                else:
                    open_[atom] = size
        self._derive(self._fixed | (owned - self.growing) | (made & self.growing))
        self._follow_known()
        return {a: n for a, n in open_.items() if a in self.growing}

    def _next_to(self, atom: int, meant: set[int]) -> bool:
        """Whether a weight has a class beside one of these that is as large: the last layer of a
        network of classes, the first on columns."""
        size = self.atoms.size[atom]
        for step, param in self._leaves:
            axes = self.axes_of(step.index) if param else set()
            joins = (p for made, p in self.links if made & axes and (p <= meant or p == {atom}))
            axes = axes.union(*joins)
            if atom in axes and any(a in meant and self.atoms.size[a] == size for a in axes):
                return True
        return False

    @cached_property
    def _whole(self) -> dict[int, int]:
        """For each class the smallest axis of a weight that it is, or is a factor of: what a head's
        dimension is, all heads together show."""
        found: dict[int, set[int]] = {}
        for step, param in self._leaves:
            for dim in self.of[step.index] if param else ():
                classes = self.atoms.expand(dim)
                size = math.prod(self.atoms.size[a] for a in classes)
                for atom in classes:
                    found.setdefault(atom, set()).add(size)
        return {atom: min(sizes) for atom, sizes in found.items()}

    # -- what is known already, and what a split width is made of ---------------------------------

    @cached_property
    def _known(self) -> dict[int, bool]:
        found: dict[int, bool] = {}
        for dim, grows in self._known_axes:
            if len(dim) == 1 or not grows:
                found.update(dict.fromkeys(dim, grows))
        return found

    @cached_property
    def _known_wholes(self) -> list[Dim]:
        """Axes of several factors that grow."""
        return [dim for dim, grows in self._known_axes if grows and len(dim) > 1]

    @cached_property
    def _known_axes(self) -> list[tuple[Dim, bool]]:
        return [
            (self.atoms.expand(self.of[step.index][axis]), grows)
            for step, param in self._leaves
            for axis, grows in enumerate(self.known.get(param or "", ()))
        ]

    def _one_of_a_list(self, atom: int) -> bool:
        """Whether a returned axis belongs to one of a list of equal layers: then the model is a
        backbone that returns its features."""
        lists: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for step, param in self._leaves:
            if param is not None and len(self.of[step.index]) > 1:
                shape = self.program.shape(step.index)
                lists.setdefault((list_of(param), shape), []).append(step.index)
        for (name, _), members in lists.items():
            own = [m for m in members if atom in self.axes_of(m)]
            if own and len(members) > len(own) and "*" in name:
                return True
        return False

    def axes_of(self, index: int) -> set[int]:
        """The classes of all axes of a value."""
        return self.atoms.classes(self.of[index])

    @cached_property
    def split_widths(self) -> set[int]:
        """Classes of the factors of widths that are split: heads, and their dimension."""
        splits = [set(self.atoms.expand((root,))) for root in self.atoms.parts]
        return set().union(*(p for p in splits if any(p <= m for m in self._made_by_weights)))

    def _heads(self, rows: set[int]) -> set[int]:
        """Of a width that is split the factors that stay where another is summed over with other
        features (attention); else the leading ones that are never summed over alone. Rows that
        were merged with a width are no part of it, wherever they stand."""
        told = [*self.summed, *self._own_axes[False]]  # all features that some layer makes
        alone = {d[0] for dim in told if len(d := self.atoms.expand(dim)) == 1}
        for new, (made, beside) in zip(self.made_of, self.links, strict=True):
            alone |= beside if new in self.joins and made & alone else set()
        splits = [[p for p in self.atoms.expand((root,)) if p not in rows]
                  for root in self.atoms.parts]  # fmt: skip
        # Two widths that were multiplied out and are read as one are no width that was split.
        splits = [parts for parts in splits if any(set(parts) <= m for m in self._made_by_weights)]
        matched, found = set[int](), set[int]()
        for parts in splits:
            heads, summed = self._matched(set(parts))
            matched |= heads
            alone |= summed
        for parts in splits:
            found |= matched & set(parts) or {p for p in parts[:-1] if p not in alone}
        return found

    def _matched(self, parts: set[int]) -> tuple[set[int], set[int]]:
        """Of the factors of a width those that stay where another, or a piece of another, is
        summed over with other features; and those that are summed over there, or are all features
        of some layer (the rows of a matrix that is looked up)."""
        found, summed = set[int](), set[int]()
        for over, stay in self._attended:
            heads = stay & parts - over if over & parts else set()
            found |= heads
            summed |= over if heads else {a for a in over & parts if {a} in self._made_by_weights}
        return found, summed

    @cached_property
    def _attended(self) -> list[tuple[set[int], set[int]]]:
        """For each product of features with features the classes that are summed over, what they
        are pieces of included, and those that stay."""
        found = []
        for over, stay in self.matched:
            classes = set(self.atoms.expand(over))
            for made, sources in self.links:
                classes |= sources if classes & made else set()
            found.append((classes, self.atoms.classes(stay)))
        return found

    def _derive(self, fixed: set[int]) -> None:
        """An axis of parts side by side grows if one of them does, a part if the whole does; a
        whole whose parts are all fixed by outputs or inputs is fixed."""
        atoms = self.atoms
        parts: dict[int, list[int]] = {}
        for atom, source in self.made_of.items():
            root = atoms.find(atom)
            if atom in self.part:
                for whole in atoms.expand(source):
                    parts.setdefault(whole, []).append(root)
        for _ in range(2):  # parts of parts
            for whole, pieces in parts.items():
                if all(set(atoms.expand((p,))) <= fixed - self.growing for p in pieces):
                    self.growing.discard(whole)
                    fixed = fixed | {whole}
        sources: dict[int, list[int]] = {}
        for atom, source in self.made_of.items():
            for root in atoms.expand((atom,)):
                sources.setdefault(root, []).extend(atoms.expand(source))
        # What a layer makes grows, also where positions, put together anew, are added to it.
        tables = {
            r for r, made in sources.items() if r in self._learned and self._only_made >= {*made}
        }
        for _ in range(4):  # joins of parts of joins
            for root, made in sources.items():
                if root in fixed or root in tables:
                    continue
                if any(a in self.growing for a in made):
                    self.growing.add(root)
                elif root not in made:  # [x, x] is a pair of rows again
                    self.growing.discard(root)

    def is_own(self, atom: int) -> bool:
        """Whether a class grows, and nothing but the layers that make and read it shows it: it is
        no part of another, and nothing was cut off it or put together to make it."""
        tied = (made if new in self.joins else made | parts
                for new, (made, parts) in zip(self.made_of, self.links, strict=True))  # fmt: skip
        return atom in self.growing and not any(atom in classes for classes in tied)

    def along(self, atom: int) -> set[int]:
        """A class with all that it is put together to."""
        return {atom}.union(*(made for made, parts in self.links if atom in parts))

    def _side_by_side_in(self, dim: Dim) -> Iterator[list[Dim]]:
        """What stands side by side along an axis, for each step that has put it so."""
        whole = self.atoms.expand(dim)
        for join in self._joined.get(whole[0], ()) if len(whole) == 1 else ():
            step = self.program[join]
            yield [self.atoms.expand(self.of[s][step.axis or 0]) for s in step.sources]

    def _count(self, dim: Dim) -> int:
        return math.prod(self.atoms.size[a] for a in dim)

    def extent(self, dim: Dim) -> int:
        """How large an axis is; where tensors of several orders stand side by side (e3nn: channels
        times three, channels times five), how many channels the largest of them has."""
        for parts in self._side_by_side_in(dim):
            fixed = {a for p in parts if len(p) > 1 for a in p} - self.growing - self.split_widths
            if fixed:
                return max(self._count(tuple(a for a in p if a not in fixed)) for p in parts)
        return self._count(self.atoms.expand(dim))

    def steady(self, dim: Dim) -> int:
        """How many entries of an axis do not grow: of parts that stand beside growing ones."""
        whole = self.atoms.expand(dim)
        for parts in self._side_by_side_in(dim):
            together = sum(map(self._count, parts)) == self._count(whole) and whole not in parts
            if together and any(map(self.grows, parts)):  # else it grows as a whole
                return sum(self.steady(p) if self.grows(p) else self._count(p) for p in parts)
        return 0

    def order(self, dim: Dim) -> int:
        """How many widths an axis multiplies: two where pairs of features lie in a row."""
        side = [p for parts in self._side_by_side_in(dim) for p in parts]
        whole = {a for made in self._made_by_weights if len(made) == 1 for a in made}
        found = [[a for a in p if a in self.growing] for p in side or [self.atoms.expand(dim)]]
        # Those that are no features for themselves are heads and their dimension, together one.
        return max(1, *(sum(a in whole for a in p) + (not whole >= {*p}) for p in found))

    def grows(self, dim: Dim) -> bool:
        return any(a in self.growing for a in self.atoms.expand(dim))

    @property
    def accounted(self) -> set[int]:
        """Classes of which it is known where they come from."""
        return self._made | self._only_made | self._fixed | self.bound.keys()

    def is_tied(self, index: int, axis: int) -> bool:
        """Whether an axis is one that a layer makes, and was taken as fixed since what is made of
        data has it as well; no column of the data itself."""
        classes = set(self.atoms.expand(self.of[index][axis]))
        data = self.given | self._numbers
        return bool(classes & self._learned & data) and not classes & self.columns

    def is_returned(self, dim: Dim) -> bool:
        """Whether an axis is fixed because the model returns it."""
        return any(a in self._ends and a in self._fixed for a in self.atoms.expand(dim))

    def is_wide(self, index: int) -> bool:
        """Whether a value has features that grow with the width."""
        return self.grows(self.features(index))


def commonest(sizes: Counter[int]) -> int:
    """The size of more than half of them; else the one that most others are usual multiples or
    parts of (heads, gates, feed-forward layers), of these the commonest, the largest."""

    def fits(size: int) -> tuple[int, int]:
        usual = [o for o in sizes if max(o, size) / min(o, size) in (1, 2, 3, 4, 6, 8)]
        return sum(sizes[other] for other in usual), len(usual)

    half = sizes.total() / 2
    return max(sizes, key=lambda size: (sizes[size] > half, fits(size), sizes[size], size))


__all__ = ["Growth", "commonest", "list_of"]
