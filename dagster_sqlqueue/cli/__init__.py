"""The command line: `sqlqueue`."""

from dagster_sqlqueue.cli.app import app as app
from dagster_sqlqueue.cli.app import main as main
