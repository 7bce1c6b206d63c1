"""Data sets by name: from the user's folder, the cache, or their public address, checked by SHA-256."""

from bayescore.data.labelled_images import IMAGE_SETS, Images, images
from bayescore.data.regular import RegularSeries, regular_series
from bayescore.data.splitting import Split, split
from bayescore.data.time_series import SERIES, Series, as_series, read_series, series
from bayescore.data.windows import Scaler, SeriesSplit, Windows, split_series

__all__ = [
    "IMAGE_SETS",
    "SERIES",
    "Images",
    "RegularSeries",
    "Scaler",
    "Series",
    "SeriesSplit",
    "Split",
    "Windows",
    "as_series",
    "images",
    "read_series",
    "regular_series",
    "series",
    "split",
    "split_series",
]
