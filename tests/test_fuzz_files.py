"""Base-shape files, damaged or made to harm: 500 in CI, or as many as GNN_MUP_FUZZ_FILES says.

    GNN_MUP_FUZZ_FILES=10000 pytest tests/test_fuzz_files.py

Whatever is in a file, reading it gives base shapes or a `BaseShapeError`, within a second; nothing
in it is executed.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from gnn_mup import (
    BaseShapeError,
    BaseShapes,
    apply_transfer,
    load_base_shapes,
    make_base_shapes,
    save_base_shapes,
)

FILES = int(os.environ.get("GNN_MUP_FUZZ_FILES", "500"))
SECONDS = 1.0
X = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))


def build(width: int = 8) -> nn.Module:
    layers = [nn.Linear(width, width) for _ in range(3)]
    return nn.Sequential(nn.Linear(5, width), *layers, nn.Linear(width, 2))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Whole files of both formats, to be damaged."""
    folder = tmp_path_factory.mktemp("whole")
    shapes = make_base_shapes(build(8), build(16), folder / "own.bsh", example=(X,))
    save_base_shapes(shapes, folder / "mup.bsh", format="mup")
    return [(folder / name).read_text() for name in ("own.bsh", "mup.bsh")]


Mutation = Callable[[str, random.Random], bytes]
WORDS = (
    "null", "~", "true", "no", "-1", "0", "1e400", "-.inf", ".nan", "9" * 400, "1_0", "0x10", "0o7",
    "1:30", "2026-01-01", "''", '"\\0"', "[]", "{}", "[[[[]]]]", "? a", "!!int 3", "!!binary aGk=",
    "!!python/object/apply:os.system ['touch executed']", "!!python/name:os.system",
    "!!python/object/new:os._exit [1]", "!!set {a, b}", "&a [1]", "*a", "<<: *a", "|", ">", "%YAML",
    "---", "...", "\t", "\ufeff", "\u2028", "😀", "weight", "grows", "format", "gnn_mup/2",
)  # fmt: skip


def _bytes(text: str, draw: random.Random) -> bytes:
    """Some bytes changed, taken out or put in."""
    raw = bytearray(text.encode())
    for _ in range(draw.randint(1, 8)):
        place = draw.randrange(len(raw) or 1)
        kind = draw.randrange(3)
        if kind == 0 and raw:
            raw[place] = draw.randrange(256)
        elif kind == 1:
            del raw[place : place + draw.randint(1, 20)]
        else:
            raw[place:place] = bytes(draw.randrange(256) for _ in range(draw.randint(1, 4)))
    return bytes(raw)


def _word(text: str, draw: random.Random) -> bytes:
    """A value, a key or a part of one replaced by something YAML has a meaning for."""
    lines = text.split("\n")
    for _ in range(draw.randint(1, 3)):
        i = draw.randrange(len(lines))
        parts = lines[i].replace(",", " ,").replace("]", " ]").split(" ")
        parts[draw.randrange(len(parts))] = draw.choice(WORDS)
        lines[i] = " ".join(parts)
    return "\n".join(lines).encode()


def _lines(text: str, draw: random.Random) -> bytes:
    """Lines doubled, lost, moved, or pushed to another depth."""
    lines = text.split("\n")
    for _ in range(draw.randint(1, 4)):
        i, j = draw.randrange(len(lines)), draw.randrange(len(lines))
        kind = draw.randrange(4)
        if kind == 0:
            lines.insert(i, lines[j])
        elif kind == 1 and len(lines) > 1:
            del lines[i]
        elif kind == 2:
            lines[i], lines[j] = lines[j], lines[i]
        else:
            lines[i] = " " * draw.randint(0, 6) + lines[i].strip()
    return "\n".join(lines).encode()


def _numbers(text: str, draw: random.Random) -> bytes:
    """Sizes and scales that are huge, tiny, negative or none."""
    huge = ("9" * draw.randint(1, 5000), "1e" + "9" * draw.randint(1, 300), "-5", "0.0", "1e-400")
    out, digits = [], ""
    for letter in text + "\0":
        if letter.isdigit():
            digits += letter
            continue
        out.append(draw.choice(huge) if digits and draw.random() < 0.1 else digits)
        out.append(letter)
        digits = ""
    return "".join(out)[:-1].encode()


def _structure(text: str, draw: random.Random) -> bytes:
    """Deep nesting, long lists, many keys, bombs."""
    n = draw.choice((10, 1000, 5000))
    laughs = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9))
    grown = [
        "[" * n,
        "{a: " * n,
        "tensors: " + "{a: " * n + "1" + "}" * n,
        "- " * n,
        "a: &a0 [x]\n" + laughs,
        f"w: [{', '.join(['8'] * n)}]",
        "\n".join(f"k{i}: [{i + 1}]" for i in range(n)),
        f"{'k' * n}: [8]",
        f"{'.'.join(['a'] * n)}: [8]",
        "? " * n,
        "&a " * n,
        "#" * n + "\n" + text,
        text + "\n---\n" + text,
        "'" + "x" * n,
        "\n" * n + text,
        text.replace("true", "[" * 50 + "]" * 50, 1),
    ]
    return draw.choice(grown).encode()


MUTATIONS: tuple[Mutation, ...] = (_bytes, _word, _lines, _numbers, _structure)


def test_damaged_files(texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    executed: list[str] = []
    watching = [True]
    sys.addaudithook(lambda event, _: _note(event, executed) if watching[0] else None)
    draw = random.Random(0)
    path = tmp_path / "damaged.bsh"
    read, slowest, words = 0, (0.0, b""), []
    try:
        for number in range(FILES):
            mutate = MUTATIONS[number % len(MUTATIONS)]
            raw = mutate(draw.choice(texts), draw)
            path.write_bytes(raw)
            start = time.process_time()
            try:
                shapes = load_base_shapes(path)
                assert isinstance(shapes, BaseShapes)
                assert all(all(size >= 0 for size in t.shape) for t in shapes.tensors.values())
                read += 1
            except BaseShapeError as error:
                words.append(str(error))
            except BaseException as error:
                raise AssertionError(f"{type(error).__name__} on {raw[:2000]!r}") from error
            slowest = max(slowest, (time.process_time() - start, raw[:200]))
    finally:
        watching[0] = False
    assert all(str(path) in text and len(text) < 1000 for text in words)
    assert executed == []
    assert not (tmp_path / "executed").exists()
    assert slowest[0] < SECONDS, slowest
    assert 0 < read < FILES  # some damage does not matter, most does


def _note(event: str, executed: list[str]) -> None:
    if event in ("os.system", "subprocess.Popen", "os.exec", "os.fork", "socket.connect"):
        executed.append(event)


def test_files_that_are_read_are_safe_to_use(texts: list[str], tmp_path: Path) -> None:
    """A file that says something else than it did is refused by the model, or obeyed."""
    draw = random.Random(1)
    path = tmp_path / "damaged.bsh"
    used = 0
    for number in range(max(FILES // 5, 20)):
        path.write_bytes(MUTATIONS[1 + number % 3](texts[0], draw))
        model = build(16)
        before = {k: v.clone() for k, v in model.state_dict().items()}
        try:
            groups = apply_transfer(model, (X,), base=path)
        except BaseShapeError:
            assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
            continue
        used += 1
        for group in groups:
            assert 0 <= group["lr"] < float("inf")
        assert all(torch.isfinite(p).all() for p in model.parameters())
    assert used > 0
