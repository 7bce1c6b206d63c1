"""Data sets by name: from the user's folder, the cache, or their public address, checked by SHA-256."""

from bayescore.data.labelled_images import IMAGE_SETS, Images, images
from bayescore.data.splitting import Split, split

__all__ = ["IMAGE_SETS", "Images", "Split", "images", "split"]
