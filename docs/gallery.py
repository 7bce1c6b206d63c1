"""The gallery: mkdocs runs every script of examples/gallery and shows its picture, its output and its code.

A script opens with a docstring, a title and a few sentences, and leaves a matplotlib figure called `figure`.
The pictures are made anew by every build and kept nowhere; a script that fails stops the build.
"""

from __future__ import annotations

import ast
import io
import runpy
import textwrap
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown", "section"]

SCRIPTS = Path(__file__).resolve().parents[1] / "examples" / "gallery"
PAGE = "gallery.md"
DPI = 110
WIDTH = 90  # of what a script printed, in signs

_sections: list[str] = []


def section(script: Path) -> tuple[str, bytes]:
    """Run a script: its part of the page, and its picture as PNG."""
    code = script.read_text()
    title, _, text = (ast.get_docstring(ast.parse(code)) or "").partition("\n")
    printed, picture = io.StringIO(), io.BytesIO()
    try:
        with redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            left: dict[str, Any] = runpy.run_path(str(script), run_name="gallery")
            left["figure"].savefig(picture, format="png", dpi=DPI)
    except Exception as problem:
        raise PluginError(f"examples/gallery/{script.name} failed: {problem!r}") from problem
    said = "\n".join(textwrap.fill(line, WIDTH) for line in printed.getvalue().splitlines())
    body = code.partition('"""\n\n')[2]
    return (
        f"## {title}\n\n{text.strip()}\n\n![{title}](images/gallery/{script.stem}.png)\n\n"
        f"```text\n{said}\n```\n\n"
        f'??? example "examples/gallery/{script.name}"\n\n    ```python\n'
        + "".join(f"    {line}\n" if line else "\n" for line in body.splitlines())
        + "    ```\n"
    ), picture.getvalue()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Run all scripts; their pictures join the site."""
    _sections.clear()
    for script in sorted(SCRIPTS.glob("*.py")):
        text, picture = section(script)
        _sections.append(text)
        files.append(File.generated(config, f"images/gallery/{script.stem}.png", content=picture))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The page of the gallery is its introduction, and one part for each script."""
    if page.file.src_uri != PAGE:
        return markdown
    return "\n".join([markdown, *_sections])
