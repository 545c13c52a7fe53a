"""Every figure of the README, measured: `python -m benchmarks`."""
