"""What people read is true: code blocks run, links lead somewhere, notebook and site are made."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from gnn_mup.cli import main as gnn_mup_command

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
GUIDE = ROOT / "examples" / "guide"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")])
OPTIONAL = ("hydra", "lightning", "yacs")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)


def blocks(page: Path, language: str) -> list[tuple[int, str]]:
    """Line and text of each block of a language; scripts that a page only shows are left out."""
    text = page.read_text()
    found = [m for m in BLOCK.finditer(text) if m[1] == language]
    shown = [m for m in found if not text[: m.start()].rstrip("\n").endswith("-->")]
    return [(text.count("\n", 0, m.start()) + 2, m[2]) for m in shown]


def module_of(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(code: str, page: Path, line: int, names: dict[str, Any]) -> None:
    """Runs a block; an error points at the line of the page."""
    exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def names_of_a_reader() -> dict[str, Any]:
    """What the pages take for granted: torch, a model, a batch, a function that builds models."""
    import gnn_mup

    build = module_of(GUIDE / "molecules.py", "molecules_of_a_reader").Net
    torch.manual_seed(0)
    graphs = [
        Data(torch.randn(9, 11), torch.randint(0, 9, (2, 24)), torch.randn(24, 4), torch.randn(1))
        for _ in range(8)
    ]
    given = {"model": build(16, 2), "batch": Batch.from_data_list(graphs), "build": build}
    given["loader"] = DataLoader(graphs, batch_size=4)
    return {**given, "torch": torch, "gnn_mup": gnn_mup, "apply_transfer": gnn_mup.apply_transfer}


READ = [ROOT / "README.md", DOCS / "answers.md", DOCS / "stack.md", DOCS / "api.md"]
CASES = [(page, line, code) for page in READ for line, code in blocks(page, "python")]


@pytest.mark.parametrize(
    ("page", "line", "code"), CASES, ids=[f"{p.stem}-{n}" for p, n, _ in CASES]
)
@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*pin_memory")
def test_a_code_block_runs(
    page: Path, line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OPTIONAL:
        if re.search(rf"^import {name}", code, re.M):
            pytest.importorskip(name, exc_type=(ImportError, RuntimeError))  # broken torchvision
    monkeypatch.chdir(tmp_path)
    run(code, page, line, names_of_a_reader())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The guide's folder as somebody has it, with fewer molecules and steps."""
    from gnn_mup.data.datasets import load

    try:
        molecules = load("QM9")
    except Exception as error:
        pytest.skip(f"QM9 is not here: {error}")
    monkeypatch.setenv("QM9_ROOT", str(Path(molecules.raw_dir).parent))
    for file in GUIDE.iterdir():
        if file.suffix in (".py", ".ipynb"):
            text = file.read_text()
            text = text.replace("MOLECULES, STEPS = 12_000, 300", "MOLECULES, STEPS = 300, 3")
            (tmp_path / file.name).write_text(text)
    assert "STEPS = 300, 3\n" in (tmp_path / "molecules.py").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("molecules", "transferred", "with_lightning"):
        sys.modules.pop(name, None)


def test_the_guide_runs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = DOCS / "guide.md"
    names: dict[str, Any] = {}
    for line, code in blocks(page, "python"):
        run(code, page, line, names)
    printed = " ".join(capsys.readouterr().out.split())
    for _, quoted in blocks(page, "text"):
        assert " ".join(quoted.split()) in printed
    for _, lines in blocks(page, "console"):
        assert lines.startswith("$ gnn-mup ")
        assert gnn_mup_command(shlex.split(lines)[2:]) in (0, 1, 3)  # few seeds may not decide


def test_at_the_reference_size_the_guide_changes_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import molecules
    import transferred

    clipped = molecules.main(64, 4, 2e-3)
    assert transferred.main(64, 4, 2e-3) == pytest.approx(clipped, rel=1e-4)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", lambda *_: None)  # it rounds otherwise
    monkeypatch.setattr(transferred, "clip_grad_norm_", lambda *_: None)
    assert transferred.main(64, 4, 2e-3) == molecules.main(64, 4, 2e-3)


@pytest.mark.filterwarnings("ignore")
def test_with_lightning_the_guide_trains_as_without(project: Path) -> None:
    pytest.importorskip("lightning", exc_type=(ImportError, RuntimeError))
    import transferred
    import with_lightning

    expected = transferred.main(32, 2, 2e-3)
    assert with_lightning.main(32, 2, 2e-3) == pytest.approx(expected, rel=1e-3)


def test_the_notebook_runs(project: Path) -> None:
    book = json.loads((project / "guide.ipynb").read_text())
    names: dict[str, Any] = {}
    for number, cell in enumerate(book["cells"]):
        if cell["cell_type"] == "code":
            exec(compile(cell["source"], f"guide.ipynb, cell {number}", "exec"), names)
    assert names["report"].verdict is not None


def test_the_guide_shows_the_scripts_and_the_notebook_is_of_the_guide() -> None:
    made = module_of(GUIDE / "notebook.py", "guide_notebook")
    page = (DOCS / "guide.md").read_text()
    todo = "python examples/guide/notebook.py"
    assert made.with_scripts(page) == page, todo
    assert made.notebook(page) == (GUIDE / "guide.ipynb").read_text(), todo


LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def links_of(page: Path) -> list[str]:
    """The links of a page to files, not those that stand in code."""
    text = re.sub(r"`[^`]*`", "", BLOCK.sub("", page.read_text()))
    return [link for link in LINK.findall(text) if "://" not in link]


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links_of(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in _anchors(target), f"{page.name} links to {link}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = r"\b((?:gnn_mup|docs|examples|tests|benchmarks)/[\w/.-]+\.(?:py|md|csv|json|ipynb))\b"
    for path in re.findall(named, page.read_text()):
        assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_a_package_index_gets_absolute_links_where_there_is_an_address() -> None:
    setup = module_of(ROOT / "setup.py", "setup_of_the_package")
    assert setup.addresses("") == {}
    made = setup.addresses("https://host/me/it")
    readme = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", readme)
    local = [link for link in links if not link.startswith("http")]
    assert len(local) > 5
    found = re.findall(r"\]\(([^)]+)\)", made["long_description"])
    assert all(link.startswith("https://") for link in found)
    assert [link.partition("/main/")[2] or link for link in found] == links
    assert "![" in readme
    assert "https://host/me/it/raw/main/docs/guide.png" in found
    assert made["project_urls"]["Issues"] == "https://host/me/it/issues"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        files = [link.partition("#")[0] for link in links_of(page)]
        todo += [(page.parent / file).resolve() for file in files if file]
    assert {page for page in PAGES if page.name != "index.md"} <= seen


def test_the_reference_has_every_public_name() -> None:
    import gnn_mup

    page = (DOCS / "reference.md").read_text()
    names = [n for n in gnn_mup.__all__ if getattr(gnn_mup, n).__module__ != "gnn_mup.errors"]
    assert [name for name in names if f"::: gnn_mup.{name}\n" not in page] == []


def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True))
    assert "apply_transfer" in (tmp_path / "reference" / "index.html").read_text()
