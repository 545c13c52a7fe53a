"""The command line: `sqlqueue`."""

from dagster_sqlqueue.cli.program import app, main

__all__ = [
    "app",
    "main",
]
