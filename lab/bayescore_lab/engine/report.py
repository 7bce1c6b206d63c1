"""The report: one self-contained page of HTML.

It is built from the committed artefacts alone (`summary.json` and the figures next to it), never from
records, and nothing is computed again. If an experiment was drawn with several profiles, `paper` is shown,
else the one with most runs.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bayescore_lab.engine.drawing import write_file
from bayescore_lab.engine.records import dumps, loads
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

Summary = Mapping[str, Any]


def build_report(out: Path) -> Path:
    """Write `out/report.html` from the artefacts below `out`; raises ValueError if there are none."""
    summaries = read_summaries(out)
    if not summaries:
        raise ValueError(f"nothing was drawn in {out} yet; run `bayescore reproduce ID --out {out}` first")
    path = out / "report.html"
    write_file(path, _page(summaries))
    return path


def read_summaries(out: Path) -> list[tuple[Path, Summary]]:
    """The summary of each experiment with its folder, in the order of the paper's figures and sections."""
    best: dict[str, tuple[Path, Summary]] = {}
    for file in sorted([*out.glob("*/summary.json"), *out.glob("*/*/summary.json")]):
        try:
            summary = loads(file.read_bytes())
            key = (summary["profile"] == "paper", summary["finished"])
            name = str(summary["experiment"])
        except (ValueError, KeyError, TypeError) as problem:
            raise ValueError(
                f"{file} is not a summary that `bayescore reproduce` wrote ({problem}); draw it again"
            ) from problem
        other = best.get(name)
        if other is None or key > (other[1]["profile"] == "paper", other[1]["finished"]):
            best[name] = (file.parent, summary)
    return sorted(best.values(), key=lambda pair: (_natural(pair[1]["location"]), pair[1]["experiment"]))


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key that puts "Fig. 2" before "Fig. 10"."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", text)]


def _page(summaries: Sequence[tuple[Path, Summary]]) -> str:
    claims = [claim for _, summary in summaries for claim in summary["claims"]]
    counts = Counter(claim["verdict"] for claim in claims)
    tally = "".join(
        f"<li>{_verdict(verdict)}: {counts[verdict]}</li>"
        for verdict in _VERDICTS
        if verdict is not None or counts[verdict]
    )
    contents = "".join(
        f'<li><a href="#{escape(s["experiment"])}">{escape(s["title"])}</a></li>' for _, s in summaries
    )
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
<p>The claims of M. Kim, <em>Large-scale Score-based Variational Posterior Inference for Bayesian Deep
Neural Networks</em>, arXiv 2602.05873 (2026). Each verdict is computed from the runs below, by the rule
beside it.</p>
<p class="soft">{counted(len(summaries), "experiment")}, {counted(runs, "run")}, {time} of computing on
one thread.</p>
</header>
<main>
<h2 id="claims">Claims and verdicts</h2>
<ul class="tally">{tally}</ul>
{"".join(_claims_of(summary) for _, summary in summaries)}
<nav aria-label="Experiments"><h2>Experiments</h2><ul>{contents}</ul></nav>
{"".join(_section(folder, summary) for folder, summary in summaries)}
</main>
</body>
</html>
"""


def _claims_of(summary: Summary) -> str:
    if not summary["claims"]:
        return ""
    name, seeds = escape(summary["experiment"]), counted(summary["seeds"], "seed")
    head = f'<h3><a href="#{name}">{escape(summary["title"])}</a></h3>'
    scope = (
        f'<p class="soft">{escape(summary["location"])}; profile {escape(summary["profile"])}, {seeds}</p>'
    )
    return f'<div class="group">{head}{scope}{"".join(map(_claim, summary["claims"]))}</div>'


def _claim(claim: Mapping[str, Any]) -> str:
    return f"""<article class="claim {_VERDICTS[claim["verdict"]][1]}">
{_verdict(claim["verdict"])}
<p>{escape(claim["text"])} <span class="soft">({escape(claim["location"])})</span></p>
<p>{escape(claim["sentence"])}</p>
<p class="soft">Rule: {escape(claim["rule"])}</p>
</article>"""


def _verdict(verdict: str | None) -> str:
    shape, kind = _VERDICTS[verdict]  # type: ignore[index]
    mark = f'<span aria-hidden="true">{shape}</span>'
    return f'<span class="verdict {kind}">{mark} {verdict or _NO_VERDICT}</span>'


def _section(folder: Path, summary: Summary) -> str:
    figures = "".join(_figure(folder, figure) for figure in summary["figures"])
    tables = "".join(map(_table, summary["tables"]))
    return f"""<section class="experiment" id="{escape(summary["experiment"])}">
<h2>{escape(summary["title"])}</h2>
<p>{escape(summary["shows"])}</p>
<p class="soft">Paper: {escape(summary["location"])}</p>
{figures}{tables}{_paper_values(summary["paper"])}
<h3>How it was run</h3>
{_facts(summary)}
</section>"""


def _figure(folder: Path, figure: Mapping[str, str]) -> str:
    """The smaller of the two files, inside the page."""
    kinds = {"svg": "image/svg+xml", "png": "image/png"}
    images = [((folder / f"{figure['file']}.{end}").read_bytes(), kind) for end, kind in kinds.items()]
    data, kind = min(images, key=lambda image: len(image[0]))
    source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    words = escape(figure["caption"], quote=True)
    image = f'<div class="wide" tabindex="0"><img src="{source}" alt="{words}"></div>'
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


def _table(table: Mapping[str, Any]) -> str:
    note = f'<p class="soft">{escape(table["note"])}</p>' if table["note"] else ""
    return f"<h3>{escape(table['title'])}</h3>{_grid(table['title'], table['columns'], table['cells'])}{note}"


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
    return (
        f"<h3>What the paper prints</h3>{_grid('Paper values', ['arm', 'quantity', 'value', 'where'], rows)}"
    )


def _facts(summary: Summary) -> str:
    runs = f"{summary['finished']} of {summary['runs']} finished"
    if summary["failures"]:
        runs += f", {summary['failures']} failed"
    versions = "; ".join(", ".join(f"{k} {v}" for k, v in found.items()) for found in summary["versions"])
    machines = "; ".join(", ".join(f"{k} {v}" for k, v in found.items()) for found in summary["machine"])
    facts = {
        "command": f"<code>{escape(summary['command'])}</code>",
        "runs": f"{runs}; {counted(summary['seeds'], 'seed')}; {summary['score_calls']:,} score calls; "
        f"{duration(summary['seconds'])} on one thread",
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
.tally { display: flex; flex-wrap: wrap; gap: 0.5rem 1.5rem; margin: 1rem 0; padding: 0; list-style: none; }
.verdict { font-weight: 650; white-space: nowrap; }
.yes { color: var(--yes); } .part { color: var(--part); } .no { color: var(--no); }
.none { color: var(--none); }
.claim { border-left: 4px solid currentColor; background: var(--card); border-radius: 0 6px 6px 0;
  margin: 0.75rem 0; padding: 0.6rem 0.9rem; break-inside: avoid; }
.claim > * { color: var(--ink); }
.claim > .verdict { color: inherit; }
.claim > .soft { color: var(--soft); }
.group > h3 { margin-bottom: 0.3rem; }
section.experiment { border-top: 1px solid var(--line); margin-top: 2.5rem; }
figure { margin: 1rem 0; break-inside: avoid; }
figure .wide { background: #ffffff; }
figure img { display: block; width: 100%; min-width: 34rem; max-width: 56rem; height: auto; margin: 0 auto;
  padding: 0.5rem; }
figcaption { color: var(--soft); font-size: 0.9rem; margin-top: 0.3rem; }
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
@media print {
  :root { --ink: #000; --soft: #333; --page: #fff; --card: #fff; --line: #999; --link: #000;
    --yes: #000; --part: #000; --no: #000; --none: #000; }
  html { font-size: 10pt; }
  body { max-width: none; padding: 0; }
  .wide { overflow: visible; border: 0; }
  figure img { min-width: 0; }
  th, td { white-space: normal; padding: 0.2rem 0.4rem; }
  table { font-size: 0.85rem; }
  h2, h3 { break-after: avoid; }
  a { text-decoration: none; }
  nav { display: none; }
}
"""
