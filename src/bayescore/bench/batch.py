"""Part 2: many independent fits as one batch against one fit alone."""

from __future__ import annotations

from bayescore.bench.rows import Part, Ratio, Row
from bayescore.bench.timing import Tell, one_thread, rounds, seconds_of
from bayescore.families import FullGaussian
from bayescore.fit import fit_many
from bayescore.methods import BaM, Method, ProximalScore
from bayescore.targets import Gaussian

__all__ = ["BAR", "FITS", "batch"]

FITS = 20
BAR = 4.0  # what FITS fits may cost, in single fits
WARM_UP = 3  # steps before the clock starts


def batch(repeats: int, tell: Tell, *, steps: int = 1000) -> Part:
    """Time FITS fits, each of a Gaussian target of its own, as one batch, and the first of them alone."""
    targets = [Gaussian.random(3, seed=i) for i in range(FITS)]
    family = FullGaussian.init(3)
    rows: list[Row] = []
    ratios: list[Ratio] = []
    methods: tuple[Method, ...] = (ProximalScore(), BaM())

    def run(method: Method, size: int, T: int, first_seed: int) -> None:
        seeds = range(first_seed, first_seed + size)
        fit_many(targets[:size], family, method, steps=T, seeds=seeds, metrics={}, progress=False, check=False)

    for method in methods:
        problem = f"{type(method).__name__}, Gaussian, D=3, T={steps}"
        arms = {"one fit": 1, f"{FITS} fits as one batch": FITS}
        with one_thread():
            for size in arms.values():
                run(method, size, WARM_UP, 0)
            clocks = {
                name: lambda i, m=method, n=size: seconds_of(lambda: run(m, n, steps, 100 * i))
                for name, size in arms.items()
            }
            times = rounds(clocks, repeats, lambda text, p=problem: tell(f"{p}, {text}"))
        draws = method.samples if isinstance(method, ProximalScore) else BaM().batch
        one, many = (Row(problem, name, tuple(times[name]), (draws * steps,) * repeats) for name in arms)
        rows += [one, many]
        ratios.append(Ratio.between(many, one, bar=BAR, at_least=False))
    return Part(
        name="batch",
        title=f"{FITS} fits as one batch against one fit",
        config={"fits": FITS, "methods": [repr(m) for m in methods], "dtype": "float64", "threads": 1},
        rows=tuple(rows),
        ratios=tuple(ratios),
        notes=("every fit has its own target from the paper's generator and its own seed; one thread",),
    )
