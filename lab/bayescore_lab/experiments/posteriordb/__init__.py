"""PosteriorDB: real posteriors, with exact and with noisy scores (Appendix B)."""
