"""Data sets by name, from a folder, the cache or a public address; a user's own pictures and texts."""

from bayescore.data.batches import Batches
from bayescore.data.labelled_images import IMAGE_SETS, Images, images
from bayescore.data.picture_sets import PICTURE_SETS, named_pictures
from bayescore.data.pictures import Pictures, new_pictures, read_pictures
from bayescore.data.splitting import Parts, Split, parts, split
from bayescore.data.texts import Texts, new_texts, read_texts
from bayescore.data.views import View

__all__ = [
    "IMAGE_SETS",
    "PICTURE_SETS",
    "Batches",
    "Images",
    "Parts",
    "Pictures",
    "Split",
    "Texts",
    "View",
    "images",
    "named_pictures",
    "new_pictures",
    "new_texts",
    "parts",
    "read_pictures",
    "read_texts",
    "split",
]
