"""Part 2: many independent fits as one batch against one fit alone."""

from __future__ import annotations

from collections.abc import Callable

from bayescore.families import FullGaussian
from bayescore.inference.fitting import fit_many
from bayescore.methods import Method
from bayescore.targets import Gaussian
from bayescore_lab.bench.results import Part, Ratio, Row
from bayescore_lab.bench.timing import CoreShare, Notify, one_thread, prefixed, rounds, seconds_of
from bayescore_lab.methods import low_dimensional_method

__all__ = ["BAR", "FITS", "batch_part"]

FITS = 20
BAR = 4.0  # what FITS fits may cost, in single fits
WARM_UP = 3  # steps before the clock starts


def batch_part(repeats: int, notify: Notify, *, steps: int = 1000) -> Part:
    """Time FITS fits, each of a Gaussian target of its own, as one batch, and the first of them alone."""
    targets = [Gaussian.random(3, seed=i) for i in range(FITS)]
    family = FullGaussian.init(3)
    share = CoreShare()
    rows: list[Row] = []
    ratios: list[Ratio] = []
    methods: tuple[Method, ...] = (low_dimensional_method("proximal"), low_dimensional_method("bam"))
    sizes = {"one fit": 1, f"{FITS} fits as one batch": FITS}

    def run(method: Method, size: int, T: int, first: int) -> None:
        seeds = range(first, first + size)
        some = targets[:size]
        fit_many(some, family, method, steps=T, seeds=seeds, metrics={}, progress=False, check=False)

    def clock(method: Method, size: int) -> Callable[[int], float]:
        run(method, size, WARM_UP, 0)
        return lambda i: seconds_of(lambda: run(method, size, steps, 100 * i))

    for method in methods:
        problem = f"{type(method).__name__}, Gaussian, D=3, T={steps}"
        with one_thread():
            arms = {name: clock(method, size) for name, size in sizes.items()}
            times = rounds(arms, repeats, prefixed(problem, notify))
        one, many = (Row(problem, name, tuple(times[name])) for name in sizes)
        rows += [one, many]
        ratios.append(Ratio.between(many, one, bar=BAR, at_least=False))
    return Part(
        name="batch",
        title=f"{FITS} fits as one batch against one fit",
        kind="pairs",
        config={
            "fits": FITS,
            "methods": [repr(m) for m in methods],
            "dtype": "float64",
            "threads": 1,
            "core_share": share.value,
        },
        rows=tuple(rows),
        ratios=tuple(ratios),
        notes=(
            "every fit has its own target from the paper's generator and its own seed; one thread",
            *share.notes(),
        ),
    )
