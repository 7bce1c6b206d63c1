"""Finding a start: checks of a target, the ascent towards a mode, local Gaussians at its iterates."""
