"""The command line: `sqlqueue`."""

from dagster_sqlqueue.cli.program import app as app
from dagster_sqlqueue.cli.program import main as main
