"""Tables and verdicts of `posteriordb-more`: who is closer to the reference draws, posterior by posterior."""

from __future__ import annotations

import math
import statistics

from bayescore_lab.engine import Claim, Judgement, Records, Rule, Table
from bayescore_lab.engine.tables import Cell
from bayescore_lab.engine.verdicts import NOT_REPRODUCED, PARTLY, REPRODUCED, Verdict

__all__ = ["AUTO", "CLAIMS", "tables"]

AUTO = "auto"
TIE = 0.02  # what 10,000 reference draws can tell apart: twice 1/sqrt(10,000)
METRICS = ("mean_error", "sd_error", "khat")


def tables(records: Records) -> list[Table]:
    """Every arm on every posterior, and the default fit against each peer."""
    return [_everything(records), _against(records)]


def _everything(records: Records) -> Table:
    rows: list[list[Cell]] = []
    for name in _posteriors(records):
        for arm, chosen in records.where(posterior=name).arms.items():
            values: list[Cell] = [_median(chosen, metric) for metric in METRICS]
            seconds = statistics.median(r.seconds for r in chosen)
            calls = round(statistics.median(r.score_calls for r in chosen))
            rows.append([name, arm, *values, seconds, calls, _setting(chosen)])
    note = (
        "Medians over the seeds. Errors are medians over the constrained parameters, as PosteriorDB reports "
        "them: |mean - reference mean| / reference sd, and |log(sd / reference sd)|; what 10,000 reference "
        "draws can tell is about 0.01. Seconds leave out compiling. The settings of peers were tuned for "
        "their ELBO at the same budget, off the clock. Eight schools has one set of reference draws, which "
        "serves both of its forms."
    )
    columns = ["posterior", "arm", "mean error", "sd error", "k-hat", "seconds", "score calls", "setting"]
    return Table("Errors against reference draws", columns, rows, note=note)


def _against(records: Records) -> Table:
    peers = [arm for arm in records.arms if arm.startswith(("NumPyro", "Pathfinder", "PyMC"))]
    rows: list[list[Cell]] = []
    for name in _posteriors(records):
        chosen = records.where(posterior=name).arms
        if AUTO not in chosen:
            continue
        ours = _median(chosen[AUTO], "error")
        cells: list[Cell] = []
        for peer in peers:
            theirs = _median(chosen[peer], "error") if peer in chosen else None
            cells.append(None if theirs is None else f"{theirs:.3f} {_word(ours, theirs)}")
        rows.append([name, ours, *cells])
    note = (
        "Mean error plus sd error, medians over the seeds, and what the default fit is beside it: better or "
        f"worse by more than {TIE:g}, else a tie. 4x: four times the default fit's seconds."
    )
    columns = ["posterior", AUTO, *peers]
    return Table("The default fit beside other libraries' VI", columns, rows, name="beside", note=note)


def _posteriors(records: Records) -> list[str]:
    return list(dict.fromkeys(r.config["posterior"] for r in records))


def _median(records: Records, metric: str) -> float:
    """Over the seeds; a run that broke down counts as infinitely bad."""
    return float(statistics.median(records.values(metric, math.inf)))


def _setting(records: Records) -> str:
    return str(records[0].metrics.get("setting", "")) if records[0].method not in _OWN else ""


_OWN = (AUTO, "BaM, batch 32", "ProximalScore")


def _word(ours: float, theirs: float) -> str:
    if abs(ours - theirs) <= TIE:
        return "(tie)"
    return "(better)" if ours < theirs else "(worse)"


def _beats(peer: str) -> Rule:
    words = (
        f"On every posterior that {peer} ran, compare medians over the seeds of mean error plus sd error, at "
        f"equal seconds. Auto is better or worse where they differ by more than {TIE:g}. Reproduced if it is "
        "better somewhere and worse nowhere; not reproduced here if it is worse at least as often as better; "
        "partly otherwise."
    )

    def judge(records: Records) -> Judgement:
        found: dict[str, list[str]] = {"(better)": [], "(tie)": [], "(worse)": []}
        lower = 0
        for name in _posteriors(records):
            arms = records.where(posterior=name).arms
            if AUTO in arms and peer in arms:
                ours, theirs = _median(arms[AUTO], "error"), _median(arms[peer], "error")
                found[_word(ours, theirs)].append(name)
                lower += ours < theirs
        better, ties, worse = (len(names) for names in found.values())
        if not better + ties + worse:
            return Judgement(None, f"These records do not have what the rule compares: {AUTO} and {peer}.")
        verdict: Verdict = PARTLY
        if better and not worse:
            verdict = REPRODUCED
        elif worse >= better:
            verdict = NOT_REPRODUCED
        where = f" ({', '.join(found['(worse)'])})" if worse else ""
        sentence = (
            f"Auto is better on {better}, ties on {ties} and is worse on {worse}{where}; "
            f"its error is the lower one on {lower} of {better + ties + worse}."
        )
        return Judgement(verdict, sentence, {"better": better, "ties": ties, "worse": worse, "lower": lower})

    return Rule(words, judge)


CLAIMS = tuple(
    Claim(
        f"The default fit beats {words} in median error at equal wall-clock.",
        "not in the paper",
        _beats(peer),
    )
    for peer, words in (
        ("NumPyro", "NumPyro's AutoMultivariateNormal"),
        ("PyMC", "PyMC's full-rank ADVI"),
        ("Pathfinder", "BlackJAX's pathfinder"),
    )
)
