"""The command line: `sqlqueue`."""

from dagster_sqlqueue.cli.app import app, main

__all__ = [
    "app",
    "main",
]
