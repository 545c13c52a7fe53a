"""`python -m dagster_sqlqueue.cli`: the same as `sqlqueue`."""

from dagster_sqlqueue.cli import main

main()
