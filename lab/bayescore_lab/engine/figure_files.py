"""Figures as files: PNG and SVG, small, and the same bytes for the same figure."""

from __future__ import annotations

import io
import re
import textwrap
from typing import TYPE_CHECKING

from bayescore_lab.engine.figures import Figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = ["SVG_LIMIT", "png", "svg", "write_caption"]

#: bytes above which the curves of an SVG become pixels
SVG_LIMIT = 300_000
_DPI = 160


def write_caption(figure: Figure) -> None:
    """Put title, seeds and budget on the drawing itself, so that it can be shown alone."""
    lines = textwrap.wrap(figure.caption, int(figure.drawing.get_figwidth() * 15))
    figure.drawing.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=7.5, color="#333333")


def png(drawing: Drawing) -> bytes:
    """The drawing in at most 256 colours, which is all that lines and text need."""
    from PIL import Image

    plain, small = io.BytesIO(), io.BytesIO()
    drawing.savefig(plain, format="png", dpi=_DPI, metadata={"Software": None})
    with Image.open(plain) as image:
        flat = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        flat.save(small, format="png", optimize=True)
    return small.getvalue()


def svg(drawing: Drawing) -> bytes:
    """The drawing as vectors; where they are too many, the curves become pixels."""
    data = _vectors(drawing)
    if len(data) > SVG_LIMIT:
        for axes in drawing.axes:
            for artist in (*axes.lines, *axes.collections):
                artist.set_rasterized(True)
        data = _vectors(drawing)
    return data


def _vectors(drawing: Drawing) -> bytes:
    text = io.StringIO()
    drawing.savefig(text, format="svg", dpi=_DPI, metadata={"Date": None, "Creator": None})
    # hundredths of a point are finer than any screen or press
    return re.sub(r'(?<= d=")[^"]*', _shorten, text.getvalue()).encode()


def _shorten(path: re.Match[str]) -> str:
    return re.sub(r"(\.\d\d)\d+", r"\1", path[0])
