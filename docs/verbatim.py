"""Docstrings on the API pages: equations, argument lists and examples are shown as they are written.

A docstring of this project is plain text. Markdown would run its indented lines together and take brackets
for links, so blocks of indented lines, and examples, are fenced before they are rendered. A star is a star.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import griffe

__all__ = ["Verbatim", "fenced"]


class Verbatim(griffe.Extension):
    """Fences the verbatim parts of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence around every block that is to be shown as it is."""
    blocks = []
    for verbatim, group in groupby(_marked(text.splitlines()), key=lambda marked: marked[0]):
        lines = "\n".join(line for _, line in group).strip("\n")
        if lines.strip():
            blocks.append(f"```text\n{lines}\n```" if verbatim else _with_stars(lines))
    return "\n\n".join(blocks)


def _with_stars(text: str) -> str:
    """The text with its single stars, outside code, marked as no emphasis."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"(?<!\*)\*(?!\*)", r"\\*", part) for part in parts[::2]]
    return "`".join(parts)


def _marked(lines: list[str]) -> list[tuple[bool, str]]:
    """Each line, and whether it is verbatim: indented, or part of an example up to the next blank line."""
    marked, example = [], False
    for line in lines:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        blank_inside = not line.strip() and bool(marked) and marked[-1][0]
        marked.append((example or line.startswith("    ") or blank_inside, line))
    return marked
