"""Classes of axes that are one and the same (union-find), some of them split into factors."""

from __future__ import annotations

from collections.abc import Iterable

Dim = tuple[int, ...]
"""An axis: the atoms whose product it is; none where its size is one."""


class Atoms:
    """Classes of axes (union-find), some of them split into factors."""

    def __init__(self) -> None:
        self.parent: list[int] = []
        self.size: list[int] = []
        self.parts: dict[int, Dim] = {}

    def new(self, size: int) -> int:
        self.parent.append(len(self.parent))
        self.size.append(size)
        return len(self.parent) - 1

    def find(self, atom: int) -> int:
        while self.parent[atom] != atom:
            self.parent[atom] = self.parent[self.parent[atom]]
            atom = self.parent[atom]
        return atom

    def expand(self, dim: Iterable[int]) -> Dim:
        """The classes of an axis, split ones by their factors."""
        out: list[int] = []
        for atom in dim:
            root = self.find(atom)
            out += self.expand(self.parts[root]) if root in self.parts else [root]
        return tuple(out)

    def in_order(self, dim: Dim) -> Dim:
        """An axis whose factors are those of one that was split, in another order: entries of an
        axis that are shuffled are still that axis."""
        found = self.expand(dim)
        wholes = (self.expand((root,)) for root in self.parts) if len(found) > 1 else ()
        return next((w for w in wholes if sorted(w) == sorted(found)), dim)

    def classes(self, dims: Iterable[Dim]) -> set[int]:
        """The classes of some axes, all together."""
        return {atom for dim in dims for atom in self.expand(dim)}

    def unify(self, one: Dim, other: Dim) -> None:
        """Make two axes one; where they have other factors, the coarser one is split."""
        a, b = list(self.expand(one)), list(self.expand(other))
        while a and b:
            x, y = a[0], b[0]
            if x == y or self.size[x] == self.size[y]:
                self._join(x, y)
                a.pop(0), b.pop(0)
            elif self.size[y] % self.size[x] == 0:
                b[0] = self._split(y, x)
                a.pop(0)
            elif self.size[x] % self.size[y] == 0:
                a[0] = self._split(x, y)
                b.pop(0)
            else:
                return
            a, b = list(self.expand(a)), list(self.expand(b))

    def _join(self, a: int, b: int) -> None:
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        if a in self.parts:
            a, b = b, a
        if a in self.parts:
            mine = self.parts.pop(a)
            self.parent[a] = b
            self.unify(mine, self.parts[b])
        else:
            self.parent[a] = b

    def _split(self, whole: int, first: int) -> int:
        rest = self.new(self.size[whole] // self.size[first])
        self.parts[self.find(whole)] = (first, rest)
        return rest

    def take(self, queue: list[int], size: int) -> Dim | None:
        """The leading atoms of a queue whose product is a size, split where needed."""
        out: list[int] = []
        while size > 1 and queue:
            head = queue[0]
            if size % self.size[head] == 0:
                out.append(queue.pop(0))
                size //= self.size[head]
            elif self.size[head] % size == 0:
                first = self.new(size)
                queue[0] = self._split(head, first)
                out.append(first)
                size = 1
            else:
                return None
        return tuple(out) if size == 1 else None


__all__ = ["Atoms", "Dim"]
