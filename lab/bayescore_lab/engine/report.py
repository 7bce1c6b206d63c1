"""The report: one self-contained page of HTML, without a script.

Its first screen is one table: place in the paper, claim, the paper's number, ours, verdict. Behind each row,
and behind each experiment further down, the rest is folded; radio buttons above the table choose a verdict.

It is built from the committed artefacts alone (`summary.json` and the figures beside it), never from records,
and nothing is computed again. Of an experiment drawn with several profiles, `paper` is shown, else the one
with most runs.

The artefacts may come from anybody. A summary is read only where it has the kinds that `draw` writes, a
figure only where it is a file of the summary's own folder; what is left out is said on the page and in the
log. All text is escaped.
"""

from __future__ import annotations

import base64
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bayescore_lab.engine.drawing import write_file
from bayescore_lab.engine.files import read_bounded
from bayescore_lab.engine.records import dumps, loads
from bayescore_lab.engine.shapes import OneOf, check_shape
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED
from bayescore_lab.engine.wording import counted, duration, number

__all__ = ["build_report", "read_summaries"]

# shape and CSS class of a verdict: its meaning does not depend on colour alone
_VERDICTS = {
    REPRODUCED: ("●", "yes"),
    PARTLY: ("◐", "part"),
    NOT_REPRODUCED: ("○", "no"),
    None: ("–", "none"),
}
_NO_VERDICT = "no verdict"
_OURS = "not in the paper"  # the place of a claim that is ours

Summary = Mapping[str, Any]

_log = logging.getLogger(__name__)

#: what the page reads of a summary
_SUMMARY = {
    **dict.fromkeys(("experiment", "title", "location", "shows", "command", "profile"), str),
    **dict.fromkeys(("seeds", "runs", "finished", "failures", "score_calls"), int),
    "seconds": float,
    "settings": dict,
    "commit": [str],
    "versions": [dict],
    "machine": [dict],
    "claims": [
        {"text": str, "location": str, "rule": str, "sentence": str, "paper": str, "ours": str}
        | {"verdict": OneOf(*_VERDICTS)},
    ],
    "paper": [{"arm": str, "metric": str, "value": float, "location": str}],
    "tables": [{"title": str, "note": str, "columns": [str], "cells": [[str]]}],
    "figures": [{"file": str, "caption": str}],
}


def build_report(out: Path) -> Path:
    """Write `out/report.html` from what was drawn below `out`; ValueError where nothing was."""
    summaries, refused = read_summaries(out)
    if not summaries:
        nothing = f"nothing was drawn in {out} yet; run `bayescore reproduce ID --out {out}` first"
        raise ValueError("\n".join(refused) or nothing)
    for sentence in refused:
        _log.warning("%s", sentence)
    path = out / "report.html"
    write_file(path, _page(summaries, refused))
    return path


def read_summaries(out: Path) -> tuple[list[tuple[Path, Summary]], list[str]]:
    """The summary of each experiment with its folder, in the order of the paper's figures and sections.

    The second list has a sentence for each file that is no summary.
    """
    best: dict[str, tuple[Path, Summary]] = {}
    refused = []
    for file in sorted([*out.glob("*/summary.json"), *out.glob("*/*/summary.json")]):
        try:
            summary = _read_summary(file)
        except (OSError, ValueError) as problem:
            refused.append(
                f"{_printable(file)} is not a summary that `bayescore reproduce` wrote and is left out "
                f"({_reason(problem)}); draw it again"
            )
            continue
        rival = best.get(summary["experiment"])
        if rival is None or _rank(summary) > _rank(rival[1]):
            best[summary["experiment"]] = (file.parent, summary)
    chosen = sorted(best.values(), key=lambda pair: (_place(pair[1]["location"]), pair[1]["experiment"]))
    return chosen, refused


def _read_summary(file: Path) -> Summary:
    summary: Summary = loads(read_bounded(file))
    check_shape(summary, _SUMMARY, "the summary")
    names = [figure["file"] for figure in summary["figures"]]
    if len(set(names)) < len(names):
        raise ValueError("two of its figures are one file")
    return summary


def _rank(summary: Summary) -> tuple[bool, int]:
    return summary["profile"] == "paper", summary["finished"]


def _reason(problem: OSError | ValueError) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


def _printable(text: str | Path) -> str:
    """A path may hold bytes that are no text."""
    return str(text).encode(errors="replace").decode()


def _place(location: str) -> tuple[bool, bool, list[tuple[float, str]]]:
    """Sorts by the paper's sections, the appendix after them, and what is not in the paper last."""
    section = re.search(r"Sec\. ([\d.]+)", location)
    return location == _OURS, section is None, _natural(section[1] if section else location)


def _natural(text: str) -> list[tuple[float, str]]:
    """Sorts "Fig. 2" before "Fig. 10"."""
    return [(float(part) if part.isdecimal() else -1.0, part) for part in re.split(r"(\d+)", text)]


def _page(summaries: Sequence[tuple[Path, Summary]], refused: Sequence[str]) -> str:
    counts = Counter(claim["verdict"] for _, summary in summaries for claim in summary["claims"])
    contents = "".join(
        f'<li><a href="#{escape(s["experiment"])}">{escape(s["title"])}</a></li>' for _, s in summaries
    )
    left_out = "".join(f"<li>{escape(sentence)}</li>" for sentence in refused)
    runs = sum(summary["finished"] for _, summary in summaries)
    time = duration(sum(summary["seconds"] for _, summary in summaries))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>bayescore: what was reproduced</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<h1>What was reproduced</h1>
<p class="soft">The claims of M. Kim, <em>Large-scale Score-based Variational Posterior Inference for
Bayesian Deep Neural Networks</em>, arXiv 2602.05873 (2026), judged by rules on {
        counted(runs, "recorded run")
    } of {counted(len(summaries), "experiment")} ({time} on one thread). Partly: some of the comparisons hold,
or their intervals leave it open. Open a row for its rule, intervals and runs.</p>
</header>
<main>
<h2 id="claims">Claims and verdicts</h2>
{_claims(summaries, counts)}
<nav aria-label="Experiments"><h2>Experiments</h2><ul>{contents}</ul></nav>
{"".join(_section(folder, summary) for folder, summary in summaries)}{
        f"<h2>Left out</h2><ul>{left_out}</ul>" if left_out else ""
    }
</main>
</body>
</html>
"""


def _claims(summaries: Sequence[tuple[Path, Summary]], counts: Mapping[str | None, int]) -> str:
    """The table of the first screen, with its filter."""
    pairs = [(summary, claim) for _, summary in summaries for claim in summary["claims"]]
    if not pairs:
        return '<p class="soft">No experiment that was drawn makes a claim.</p>'
    pairs.sort(key=lambda pair: (_place(pair[1]["location"]), _natural(pair[1]["location"])))
    choices = [("all", "all", sum(counts.values()))]
    choices += [(kind, verdict or _NO_VERDICT, counts[verdict]) for verdict, (_, kind) in _VERDICTS.items()]
    filters = "".join(
        f'<input type="radio" name="verdict" id="show-{kind}"{" checked" if kind == "all" else ""}>'
        f'<label for="show-{kind}">{_mark(kind)}{escape(words)} <b>{count}</b></label>'
        for kind, words, count in choices
        if count or kind == "all"
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in ("place", *_CELLS, "verdict"))
    rows = "".join(_row(summary, claim) for summary, claim in pairs)
    return (
        f'<div class="filter" role="group" aria-label="Show only one verdict">{filters}'
        f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


#: the cells of a claim between its place and its verdict, as a phone names them
_CELLS = ("claim", "paper", "ours")


def _row(summary: Summary, claim: Mapping[str, Any]) -> str:
    name, place = escape(summary["experiment"]), escape(claim["location"])
    scope = escape(f"profile {summary['profile']}, {counted(summary['seeds'], 'seed')}")
    paper = escape(claim["paper"]) or '<span class="soft">no number</span>'
    kind = _VERDICTS[claim["verdict"]][1]
    # a click on the claim ticks a box and shows the row after it
    return f"""<tr class="{kind}">
<td class="place">{place}</td>
<td><label class="fold"><input type="checkbox">{escape(claim["text"])}</label></td>
<td data-name="paper">{paper}</td>
<td data-name="ours">{escape(claim["ours"]) or "–"}</td>
<td>{_verdict(claim["verdict"])}</td>
</tr>
<tr class="{kind} folded"><td colspan="5">{_numbered(claim["sentence"])}
{_numbered("Rule: " + claim["rule"], ' class="soft"')}
<p class="soft">Runs: <a href="#{name}">{escape(summary["title"])}</a>, {scope}</p></td></tr>"""


def _numbered(text: str, attributes: str = "") -> str:
    """A text whose parts (1), (2), ... have a paragraph each."""
    parts = re.split(r"(?<=[.:]) (?=\(\d+\) )", text)
    return "".join(f"<p{attributes}>{escape(part)}</p>" for part in parts)


def _mark(kind: str) -> str:
    shapes = {kind: shape for shape, kind in _VERDICTS.values()}
    return f'<span class="{kind}" aria-hidden="true">{shapes[kind]}</span> ' if kind in shapes else ""


def _verdict(verdict: str | None) -> str:
    kind = _VERDICTS[verdict][1]  # type: ignore[index]
    return f'<span class="verdict {kind}">{_mark(kind)}{escape(verdict or _NO_VERDICT)}</span>'


def _section(folder: Path, summary: Summary) -> str:
    figures = "".join(_figure(folder, figure) for figure in summary["figures"])
    tables = "".join(map(_table, summary["tables"])) + _paper_values(summary["paper"])
    return f"""<section class="experiment" id="{escape(summary["experiment"])}">
<h2>{escape(summary["title"])}</h2>
<p>{escape(summary["shows"])}</p>
<p class="soft">Paper: {escape(summary["location"])}</p>
<div class="thumbnails">{figures}</div>
{tables}{_folded("How it was run", _facts(summary))}
</section>"""


def _folded(title: str, content: str) -> str:
    return f"<details><summary><h3>{escape(title)}</h3></summary>{content}</details>"


def _figure(folder: Path, figure: Mapping[str, str]) -> str:
    """The smaller of the two files, inside the page; a sentence where they are not files of the folder."""
    words = escape(figure["caption"])
    try:
        data, kind = _read_figure(folder, figure["file"])
    except (OSError, ValueError) as problem:
        sentence = (
            f"The figure {figure['file']!r:.80} of {_printable(folder)} is left out: {_reason(problem)}."
        )
        _log.warning("%s", sentence)
        return f'<p class="soft">{escape(sentence)}</p><p class="soft">{words}</p>'
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    # a click on the picture ticks a box and makes it as wide as the page
    box = f'<input type="checkbox" aria-label="Enlarge: {words}">'
    image = f'<label>{box}<img src="{source}" alt="{words}"></label>'
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


def _read_figure(folder: Path, name: str) -> tuple[bytes, str]:
    if any(sign in name for sign in "/\\:\0"):
        raise ValueError("its file must be a plain name, of a file in the same folder")
    kinds = {"svg": "image/svg+xml", "png": "image/png"}
    images = [(read_bounded(folder / f"{name}.{end}"), kind) for end, kind in kinds.items()]
    return min(images, key=lambda image: len(image[0]))


def _table(table: Mapping[str, Any]) -> str:
    note = f'<p class="soft">{escape(table["note"])}</p>' if table["note"] else ""
    return _folded(table["title"], _grid(table["title"], table["columns"], table["cells"]) + note)


def _grid(name: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows
    )
    # a box that scrolls must be reachable by keyboard
    box = f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name, quote=True)}">'
    return f"{box}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _paper_values(values: Sequence[Mapping[str, Any]]) -> str:
    if not values:
        return ""
    rows = [[v["arm"], v["metric"].replace("_", " "), number(v["value"]), v["location"]] for v in values]
    return _folded(
        "What the paper prints", _grid("Paper values", ["arm", "quantity", "value", "where"], rows)
    )


def _facts(summary: Summary) -> str:
    runs = f"{summary['finished']} of {summary['runs']} finished"
    if summary["failures"]:
        runs += f", {summary['failures']} failed"
    versions = "; ".join(", ".join(f"{k} {v}" for k, v in found.items()) for found in summary["versions"])
    machines = "; ".join(", ".join(f"{k} {v}" for k, v in found.items()) for found in summary["machine"])
    facts = {
        "command": f"<code>{escape(summary['command'])}</code>",
        "runs": escape(
            f"{runs}; {counted(summary['seeds'], 'seed')}; {summary['score_calls']:,} score calls; "
            f"{duration(summary['seconds'])} on one thread"
        ),
        "settings": f"<code>{escape(dumps(summary['settings']))}</code>",
        "commit": f"<code>{escape(', '.join(summary['commit']))}</code>",
        "machine": escape(machines),
        "versions": escape(versions),
    }
    return "<dl>" + "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items()) + "</dl>"


#: the style sheet: phone, desk, paper, light and dark, without a script or a remote font
_STYLE = """
:root {
  color-scheme: light dark;
  --ink: #1b1f24; --soft: #57606a; --page: #ffffff; --card: #f6f7f9; --line: #d5dae0; --link: #0b5cad;
  --yes: #00694c; --part: #7a5200; --no: #a8320a; --none: #57606a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ink: #e6e9ed; --soft: #a2abb5; --page: #14171b; --card: #1e2329; --line: #39424c; --link: #7fb8f0;
    --yes: #4fd1a5; --part: #f0b949; --no: #ff9a73; --none: #a2abb5;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; scroll-padding-top: 1rem; }
body {
  margin: 0 auto; padding: 1.25rem 1rem 4rem; max-width: 64rem; background: var(--page); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
  overflow-wrap: break-word;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0.5rem 0; }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 2.5rem 0 0.75rem; }
h3 { font-size: 1.02rem; margin: 1.6rem 0 0.5rem; }
p { margin: 0.4rem 0; }
a { color: var(--link); }
code, pre { font: 0.86em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: 0.9rem; }
.verdict { font-weight: 650; white-space: nowrap; }
.yes { color: var(--yes); } .part { color: var(--part); } .no { color: var(--no); }
.none { color: var(--none); }
.filter { margin: 1rem 0; }
.filter > input { position: absolute; opacity: 0; }
.filter > label { display: inline-block; margin: 0 0.4rem 0.6rem 0; padding: 0.2rem 0.7rem; cursor: pointer;
  border: 1px solid var(--line); border-radius: 1rem; font-size: 0.9rem; }
.filter > input:checked + label { background: var(--card); border-color: var(--ink); }
.filter > input:focus-visible + label { outline: 2px solid var(--link); }
.claims td, .claims th { white-space: normal; }
.claims tbody tr > td { color: var(--ink); }
.claims td:first-child { box-shadow: inset 4px 0 0 currentColor; }
.claims tbody tr.yes > td:first-child { box-shadow: inset 4px 0 0 var(--yes); }
.claims tbody tr.part > td:first-child { box-shadow: inset 4px 0 0 var(--part); }
.claims tbody tr.no > td:first-child { box-shadow: inset 4px 0 0 var(--no); }
.claims .place, .claims td:nth-child(3) { width: 9rem; } .claims td:nth-child(4) { width: 11rem; }
summary { cursor: pointer; }
summary h3 { display: inline; }
section details { margin: 0.7rem 0; }
#show-yes:checked ~ table tbody tr:not(.yes), #show-part:checked ~ table tbody tr:not(.part),
#show-no:checked ~ table tbody tr:not(.no), #show-none:checked ~ table tbody tr:not(.none) {
  display: none !important; }
section.experiment { border-top: 1px solid var(--line); margin-top: 2.5rem; }
.thumbnails { display: flex; flex-wrap: wrap; gap: 1rem; margin: 0.8rem 0; }
figure { margin: 0; flex: 0 1 17rem; break-inside: avoid; }
figure:has(input:checked) { flex-basis: 100%; }
figure label { display: block; cursor: zoom-in; background: #ffffff; border: 1px solid var(--line);
  border-radius: 6px; }
figure:has(input:checked) label { cursor: zoom-out; }
figure input, .fold input { position: absolute; opacity: 0; }
.fold { display: block; cursor: pointer; }
.fold::before { content: "\\25B8\\00A0"; }
.fold:has(input:checked)::before { content: "\\25BE\\00A0"; }
.fold:has(input:focus-visible) { outline: 2px solid var(--link); }
.folded, tr:not(:has(input:checked)) + .folded { display: none; }
tr:has(input:checked) + .folded { display: table-row; }
tr:has(input:checked) > td { border-bottom: 0; }
figure:has(input:focus-visible) label { outline: 2px solid var(--link); }
figure img { display: block; width: 100%; height: auto; padding: 0.5rem; }
figcaption { color: var(--soft); font-size: 0.8rem; margin-top: 0.3rem; }
figure:not(:has(input:checked)) figcaption { display: -webkit-box; overflow: hidden; -webkit-line-clamp: 2;
  -webkit-box-orient: vertical; }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; margin: 0.5rem 0; }
.wide:focus-visible { outline: 2px solid var(--link); }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0.7rem; text-align: left; vertical-align: top; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th { background: var(--card); }
tbody tr:last-child td { border-bottom: 0; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) minmax(0, 1fr); gap: 0.15rem 1rem;
  font-size: 0.9rem; margin: 0.5rem 0; }
dt { color: var(--soft); } dd { margin: 0; }
nav ul { columns: 18rem; padding-left: 1.1rem; margin: 0.5rem 0; }
nav li { break-inside: avoid; }
@media (max-width: 45rem) {
  .claims thead { position: absolute; left: -999rem; }
  .claims tr, .claims td { display: block; width: auto; border: 0; padding: 0.1rem 0; }
  .claims tbody tr { border: 1px solid var(--line); border-left: 4px solid currentColor; border-radius: 6px;
    padding: 0.5rem 0.8rem; margin: 0.6rem 0; }
  .claims tr:has(input:checked) + .folded { display: block; }
  .claims tbody td:first-child { box-shadow: none !important; color: var(--soft); }
  .claims td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); }
  .claims td:nth-child(n) { width: auto; }
}
@media print {
  :root { --ink: #000; --soft: #333; --page: #fff; --card: #fff; --line: #999; --link: #000;
    --yes: #000; --part: #000; --no: #000; --none: #000; }
  html { font-size: 10pt; }
  body { max-width: none; padding: 0; }
  .wide { overflow: visible; border: 0; }
  .filter > input, .filter > label { display: none; }
  .claims tbody tr { break-inside: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
  figure, figure:has(input:checked) { flex: 0 1 48%; }
  figure:not(:has(input:checked)) figcaption { display: block; }
  th, td { white-space: normal; padding: 0.2rem 0.4rem; }
  table { font-size: 0.85rem; }
  h2, h3 { break-after: avoid; }
  a { text-decoration: none; }
  nav { display: none; }
}
"""
