"""Where a fit begins: the check of a target, the ascent towards a mode, Gaussians on the way."""
