"""Data sets by name, from a folder, the cache or a public address; a user's own pictures and texts."""

from bayescore.data.batches import Batches
from bayescore.data.labelled_images import IMAGE_SETS, Images, images
from bayescore.data.picture_sets import PICTURE_SETS, named_pictures
from bayescore.data.pictures import Pictures, new_pictures, read_pictures
from bayescore.data.regular import RegularSeries, regular_series
from bayescore.data.splitting import Parts, Split, parts, split
from bayescore.data.tables import Table, read_table
from bayescore.data.texts import Texts, new_texts, read_texts
from bayescore.data.time_series import SERIES, Series, as_series, read_series, series
from bayescore.data.views import View
from bayescore.data.windows import Scaler, SeriesSplit, Windows, split_series

__all__ = [
    "IMAGE_SETS",
    "PICTURE_SETS",
    "SERIES",
    "Batches",
    "Images",
    "Parts",
    "Pictures",
    "RegularSeries",
    "Scaler",
    "Series",
    "SeriesSplit",
    "Split",
    "Table",
    "Texts",
    "View",
    "Windows",
    "as_series",
    "images",
    "named_pictures",
    "new_pictures",
    "new_texts",
    "parts",
    "read_pictures",
    "read_series",
    "read_table",
    "read_texts",
    "regular_series",
    "series",
    "split",
    "split_series",
]
