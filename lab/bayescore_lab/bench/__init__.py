"""What `bayescore bench` runs: speed, always as a ratio to a peer measured in the same run."""
