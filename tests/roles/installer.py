"""A process that installs roles when it is asked to: `python -m tests.roles.installer URL SCHEMA`."""

import sys

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.schema import migrations


def main(url: str, schema: str) -> None:
    """Say that it is ready, wait for a line, install, and say so."""
    with SqlQueue(url, schema=schema) as queue:
        migrations.check(queue.database)
        print("ready", flush=True)  # noqa: T201
        sys.stdin.readline()
        queue.install_roles()
        print("done", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
