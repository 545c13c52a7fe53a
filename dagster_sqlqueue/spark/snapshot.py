"""One snapshot of the database for all tasks of a read: a process that keeps it, since Spark soon ends the one that plans.

The process ends with Spark's driver, or after the seconds that it was given, and with it the snapshot.
"""

import json
import os
import subprocess
import sys
import threading
import time

import psycopg

from dagster_sqlqueue.db import permissions, statements
from dagster_sqlqueue.db.error_translation import user_of
from dagster_sqlqueue.db.pool import execute
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.python import running
from dagster_sqlqueue.spark.task_connection import REFUSED
from dagster_sqlqueue.spark.urls import libpq

_LOOK_SECONDS = 0.5
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
    order = {"conninfo": libpq(url), "schema": schema, "seconds": seconds, "lock": lock, "driver": os.getppid()}
    command, environment = running("dagster_sqlqueue.spark.snapshot")
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


def _main() -> None:
    order = json.loads(sys.stdin.readline())
    until = time.monotonic() + order["seconds"]
    user = ""
    try:
        with psycopg.connect(order["conninfo"], autocommit=True) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Where this process cannot end it any more, the server does.
            connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{order['seconds'] + 10}s'".encode())
            user = user_of(connection)
            execute(connection, statements.load(order["lock"], order["schema"]), {})
            ((found,),) = execute(connection, statements.load("spark_export_snapshot"), {})
            print(json.dumps({"snapshot": found}), flush=True)  # noqa: T201
            pause = threading.Event()
            while time.monotonic() < until and _runs(order["driver"]):
                pause.wait(_LOOK_SECONDS)
    except psycopg.Error as error:
        answer = {"error": " ".join(str(error).split()), "state": error.sqlstate, "user": user}
        print(json.dumps(answer), flush=True)  # noqa: T201


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _main()
