"""Files of data sets, looked for in the folder $BAYESCORE_DATA, then in the cache, then at a public address.

A file is identified by the SHA-256 of its uncompressed content, because copies of one file are compressed
differently. Content that does not match is refused; a download that does not match never enters the cache.
Before a download its licence is said, by a warning in the log, which Python shows unless told otherwise.
"""

from __future__ import annotations

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

from bayescore.caches import cache_place, make_private
from bayescore.io import replacing
from bayescore.reading import read_content

__all__ = ["Source", "read"]

_log = logging.getLogger(__name__)

COMPRESSED = (".gz", ".xz", ".zip")


@dataclass(frozen=True)
class Source:
    """One file: its place below a data folder, SHA-256 and size of its content, public addresses.

    A path without the ending of a compressed file also stands for its compressed forms. A file whose SHA-256
    is not known has None; `size` is then the most bytes that it may have.
    """

    path: str
    sha256: str | None
    size: int
    addresses: tuple[str, ...] = ()
    licence: str = "not stated where it is published"


def read(source: Source) -> bytes:
    """The content of the file, uncompressed and checked.

    Raises FileNotFoundError if it is in no folder and cannot be downloaded, and ValueError if it is damaged.
    """
    for place in _places(source):
        if place.is_file():
            return _content(source, place)
    return _download(source)


def _places(source: Source) -> list[Path]:
    roots = [Path(root)] if (root := os.environ.get("BAYESCORE_DATA")) else []
    endings = ("",) if Path(source.path).suffix in COMPRESSED else ("", *COMPRESSED)
    return [root / f"{source.path}{ending}" for root in (*roots, cache_place("data")) for ending in endings]


def _content(source: Source, place: Path) -> bytes:
    """The uncompressed bytes of the file at `place`, if they are those that the source promises."""
    content = read_content(place, source.size, "remove it to fetch it anew")
    found = hashlib.sha256(content).hexdigest()
    if source.sha256 is not None and found != source.sha256:
        raise ValueError(
            f"{place} is not the file it should be: the SHA-256 of its content is {found}, "
            f"expected {source.sha256}; remove it to fetch it anew"
        )
    return content


def _download(source: Source) -> bytes:
    """Download the file into the cache; returns its content."""
    if not source.addresses:
        raise FileNotFoundError(
            f"{source.path} has no public address of its own and is in no data folder; get it where the data "
            "set is published, put it into a folder under that path, plain or compressed, and set "
            "BAYESCORE_DATA to the folder"
        )
    try:
        import pooch
    except ImportError:
        raise ImportError(
            f"{source.path} is in no data folder, and downloading it needs pooch: "
            "pip install 'bayescore[data]', or set BAYESCORE_DATA to a folder that holds it"
        ) from None
    place = cache_place("data") / source.path
    _log.warning(
        "downloading %s, at most %.1f MB, to %s; its licence: %s",
        source.path,
        source.size / 1e6,
        place.parent,
        source.licence,
    )
    problems = []
    for address in source.addresses:
        try:
            make_private(place.parent)
            with replacing(place) as part:
                pooch.retrieve(address, known_hash=None, fname=part.name, path=part.parent)
                content = _content(source, part)
        except ValueError as problem:
            problems.append(f"{address}: {problem}")
        except OSError as problem:  # no network, refused, not found
            problems.append(f"{address}: {type(problem).__name__}")
        else:
            return content
    raise FileNotFoundError(
        f"{source.path} could not be downloaded ({'; '.join(problems)}); "
        "set BAYESCORE_DATA to a folder that holds it"
    )
