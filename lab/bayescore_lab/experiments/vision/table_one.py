"""The numbers of Table 1, by data set, network and method: error in percent, ECE in percent, NLL."""

from __future__ import annotations

from bayescore_lab.engine import PaperValue

__all__ = ["METHODS", "NETWORKS", "SETS", "cell", "paper_values"]

SETS = {"pets": "Pets", "flowers102": "Flowers", "aircraft": "Aircraft", "dtd": "DTD"}
NETWORKS = {"resnet101": "ResNet101", "vit_l_32": "ViT-L-32"}
METHODS = ("Plain", "ADVI", "MC-dropout", "SGLD", "Laplace", "Ours")
LOCATION = "Table 1"

#: error, ECE, NLL of ResNet101, then of ViT-L-32
PRINTED: dict[str, dict[str, tuple[float | None, ...]]] = {
    "pets": {
        "Plain": (9.64, None, None, 8.14, None, None),
        "ADVI": (9.134, 0.08, 0.31, 7.91, 0.06, 0.2518),
        "MC-dropout": (9.4827, 0.096, 0.3163, 8.3155, 0.0539, 0.2569),
        "SGLD": (9.3767, 0.0473, 0.3052, 8.6467, 0.0425, 0.2649),
        "Laplace": (10.0833, 0.0567, 0.3268, 8.5767, 0.0475, 0.2684),
        "Ours": (9.114, 0.044, 0.2986, 7.746, 0.036, 0.2468),
    },
    "flowers102": {
        "Plain": (15.0167, None, None, 12.51, None, None),
        "ADVI": (12.678, 0.07, 0.5104, 12.656, 0.158, 0.5116),
        "MC-dropout": (14.0333, 0.0594, 0.55, 13.2133, 0.014, 0.5567),
        "SGLD": (13.4867, 0.0647, 0.5195, 12.8667, 0.1582, 0.5591),
        "Laplace": (13.7725, 0.0883, 0.5859, 13.5212, 0.0367, 0.6477),
        "Ours": (12.04, 0.042, 0.4683, 11.97, 0.008, 0.493),
    },
    "aircraft": {
        "Plain": (48.01, None, None, 54.3, None, None),
        "ADVI": (45.42, 0.044, 1.8084, 53.002, 0.062, 2.0754),
        "MC-dropout": (45.97, 0.0237, 1.7613, 53.2133, 0.0757, 2.04),
        "SGLD": (47.514, 0.0217, 1.7883, 52.9125, 0.0603, 2.0883),
        "Laplace": (46.0425, 0.0427, 1.8162, 53.56, 0.071, 2.0955),
        "Ours": (44.196, 0.018, 1.728, 52.318, 0.052, 2.0531),
    },
    "dtd": {
        "Plain": (38.21, None, None, 34.0767, None, None),
        "ADVI": (35.044, 0.352, 1.6586, 32.83, 0.19, 1.2194),
        "MC-dropout": (35.8867, 0.3867, 1.3642, 33.8267, 0.1675, 1.2337),
        "SGLD": (36.06, 0.3067, 1.5099, 33.37, 0.1875, 1.2498),
        "Laplace": (36.2933, 0.75, 1.8828, 33.8567, 0.2625, 1.3343),
        "Ours": (34.49, 0.112, 1.4001, 32.498, 0.09, 1.1936),
    },
}


def cell(data: str, net: str) -> str:
    """The name of a cell of the table."""
    return f"{SETS.get(data, data)}, {NETWORKS.get(net, net)}"


def paper_values(data: str, net: str) -> list[PaperValue]:
    """What the paper prints in one cell; errors as fractions, and its ECE as the all-class ECE in percent."""
    start = 3 * list(NETWORKS).index(net) if net in NETWORKS else None
    if data not in PRINTED or start is None:
        return []
    found = []
    for method, row in PRINTED[data].items():
        error, ece, nll = row[start : start + 3]
        values = {"error": None if error is None else error / 100, "all_class_ece": ece, "nll": nll}
        found += [PaperValue(method, name, v, LOCATION) for name, v in values.items() if v is not None]
    return found
