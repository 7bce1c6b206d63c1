"""The style sheet of the report: phone, desk, paper, light and dark, without a script or a remote font."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
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
