"""Pictures of fits and of networks' probabilities; needs matplotlib."""
