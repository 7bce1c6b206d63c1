"""What the design page promises about the tree is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "bayescore"
PAGE = (ROOT / "docs" / "design.md").read_text()
FILES = sorted(SOURCE.rglob("*.py"))


def imports_of_the_library(tree: ast.AST) -> list[ast.stmt]:
    """The statements that import a module of the library."""
    found: list[ast.stmt] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "bayescore":
            found.append(node)
        if isinstance(node, ast.Import) and any(a.name.split(".")[0] == "bayescore" for a in node.names):
            found.append(node)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_of_the_library_hides_in_a_function(path: Path) -> None:
    """It could hide a cycle; the command line imports late because it must answer without torch."""
    if path.relative_to(SOURCE).parts[0] == "cli":
        return
    tree = ast.parse(path.read_text())
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f.name for f in functions if imports_of_the_library(f)] == []


def test_the_walks_name_files_that_exist_each_once() -> None:
    section = PAGE.split("## Two walks")[1].split("\n## ")[0]
    for walk in section.split("**(")[1:]:
        files = re.findall(r"^\d+\. `([\w/]+\.py)`", walk, re.M)
        assert 10 < len(files) <= 20
        assert len(set(files)) == len(files)
        assert [name for name in files if not (SOURCE / name).is_file()] == []


def test_the_rules_of_the_table_are_called_by_both_shells() -> None:
    rows = re.findall(
        r"^\| `rules/(\w+)\.py`.*?\| `methods\.(\w+)`.*?\| (?:inside )?`optim\.(\w+)`", PAGE, re.M
    )
    assert len(rows) >= 7
    for rule, method, optimizer in rows:
        for room, name in (("methods", method), ("optim", optimizer)):
            (file,) = [f for f in (SOURCE / room).glob("*.py") if f"class {name}(" in f.read_text()]
            called = {rule} if rule != "ridge" or room == "methods" else {"ridge", "calibrated"}
            text = file.read_text()
            assert any(f"from bayescore.rules.{one} import" in text for one in called), (file.name, rule)


def test_the_glossary_has_about_thirty_words_each_once() -> None:
    section = PAGE.split("## Words")[1].split("\n## ")[0]
    words = re.findall(r"^\| ([a-z][\w ,]*) \|", section, re.M)[1:]
    assert 20 <= len(words) <= 35
    assert len(set(words)) == len(words)
