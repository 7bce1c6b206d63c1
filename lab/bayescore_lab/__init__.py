"""The evidence behind bayescore: experiments and benchmarks, run by `bayescore reproduce` and `bench`."""
