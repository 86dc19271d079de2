"""YAML from anyone: text, lists and tables with their lines, and nothing that runs or expands."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml

from ..errors import BaseShapeError

_DEEP = 5
_TABLE = yaml.MappingStartEvent
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WHOLE = re.compile(r"[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


@dataclass
class Item:
    """A piece of YAML: text, a list or a table, and its line."""

    value: str | list[Item] | dict[str, Item]
    line: int
    key: str | None = None


@dataclass(frozen=True)
class Reader:
    """Turns YAML items into checked values, or says in which line of which file they are not."""

    path: str
    remake: str

    def fail(self, line: int | None, what: str) -> NoReturn:
        place = self.path if line is None else f"{self.path}, line {line}"
        short = what if len(what) < 400 else what[:400] + " ..."
        raise BaseShapeError(f"{place}: {short}. Mend it, or write it again: {self.remake}")

    def wrong(self, item: Item, what: str, wanted: str) -> NoReturn:
        kinds = {list: "a list", dict: "a table"}
        found = kinds.get(type(item.value)) or repr(item.value)[:80]
        self.fail(item.line, f"{what} must be {wanted}, not {found}")

    def table(self, item: Item, what: str) -> dict[str, Item]:
        return item.value if isinstance(item.value, dict) else self.wrong(item, what, "a table")

    def items(self, item: Item, what: str) -> list[Item]:
        return item.value if isinstance(item.value, list) else self.wrong(item, what, "a list")

    def size(self, item: Item, what: str) -> int:
        if isinstance(item.value, str) and _WHOLE.fullmatch(item.value):
            return int(item.value)
        self.wrong(item, what, "a whole number of at least 1")

    def number(self, item: Item, what: str) -> float:
        known = isinstance(item.value, str) and _NUMBER.fullmatch(item.value)
        if known and math.isfinite(value := float(str(item.value))):
            return value
        self.wrong(item, what, "a finite number")

    def scale(self, item: Item, what: str, *, zero: bool = False) -> float:
        value = self.number(item, what)
        if value < 0 or (value == 0 and not zero):
            self.wrong(item, what, "at least 0" if zero else "above 0")
        return value

    def flag(self, item: Item, what: str) -> bool:
        if item.value not in ("true", "false"):
            self.wrong(item, what, "true or false")
        return item.value == "true"

    def parse(self, text: str) -> Item:
        """The document as items; never recursive, and without anything that YAML could expand."""
        root = Item([], 1)
        stack = [root]
        try:
            for event in yaml.parse(text, Loader=_LOADER):
                self._take(event, stack)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).split("\n")[0]
            self.fail(mark.line + 1 if mark else None, f"not YAML ({problem})")
        except ValueError as error:
            self.fail(None, f"not YAML ({error})")
        documents = self.items(root, "the file")
        if len(documents) != 1:
            self.fail(None, f"it holds {len(documents)} documents instead of one")
        return documents[0]

    def _take(self, event: Any, stack: list[Item]) -> None:
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            self.fail(line, "anchors and aliases (& and *) are not read")
        if getattr(event, "tag", None):
            self.fail(line, f"tags such as {str(event.tag)[:80]!r} are not read")
        if isinstance(event, yaml.CollectionEndEvent):
            stack.pop()
        elif isinstance(event, yaml.NodeEvent):
            self._add(event, line, stack)

    def _add(self, event: Any, line: int, stack: list[Item]) -> None:
        parent = stack[-1]
        scalar = isinstance(event, yaml.ScalarEvent)
        if isinstance(parent.value, dict) and parent.key is None:
            parent.key = self._new_key(event.value if scalar else None, line, parent.value)
            return
        empty: dict[str, Item] | list[Item] = {} if isinstance(event, _TABLE) else []
        item = Item(event.value if scalar else empty, line)
        if isinstance(parent.value, dict):
            parent.value[str(parent.key)], parent.key = item, None
        elif isinstance(parent.value, list):
            parent.value.append(item)
        if not scalar:
            stack.append(item)
        if len(stack) > _DEEP + 1:
            self.fail(line, "lists and tables are nested too deeply")

    def _new_key(self, key: str | None, line: int, table: dict[str, Item]) -> str:
        if key is None:
            self.fail(line, "a key must be a name")
        if not key or not key.isprintable() or len(key) > 1000 or key.count(".") > 100:
            self.fail(line, f"{key[:80]!r} is no name of a parameter")
        if key in table:
            self.fail(line, f"{key!r} stands here a second time")
        return key


def is_null(item: Item) -> bool:
    return item.value in ("null", "~", "")
