"""One snapshot of the database for all tasks of a read: a process that keeps it, since Spark soon ends the one that plans.

The process ends with Spark's driver, or after the seconds that it was given, and with it the snapshot.
"""

import json
import os
import subprocess

from dagster_sqlqueue.db import permissions, statements
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.python import running
from dagster_sqlqueue.spark.task_connection import REFUSED
from dagster_sqlqueue.spark.urls import libpq

_kept: list[subprocess.Popen[str]] = []


def keep(url: str, schema: str, seconds: int, lock: str) -> str:
    """Start a process that keeps a snapshot.

    Args:
        url: the database.
        schema: where the queue's tables are.
        seconds: for how long, at most.
        lock: the SQL file that keeps a table from losing rows other than by what the snapshot does not see.

    Returns:
        The snapshot's id, for `SET TRANSACTION SNAPSHOT`.

    Raises:
        AccessRefused: the user may not read that table.
        InvalidInput: the database gave none.
    """
    # The order goes through a pipe: every user of the machine can read a command line.
    order = {
        "conninfo": libpq(url),
        "seconds": seconds,
        "lock": statements.load(lock, schema),
        "export": statements.load("spark_export_snapshot"),
        "driver": os.getppid(),
    }
    command, environment = running("dagster_sqlqueue.spark.snapshot_process")
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    _kept.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(order) + "\n")
    process.stdin.close()
    answer = json.loads(process.stdout.readline() or "{}")
    if answer.get("state") == REFUSED:
        raise permissions.refusal(schema, (lock,), answer["user"], answer["error"])
    if "snapshot" not in answer:
        raise InvalidInput(
            f"the database gives no snapshot for all tasks to share: {answer.get('error', 'no answer')}; read with the"
            " option consistent=as_of, or with limit, which one task reads"
        )
    return str(answer["snapshot"])
