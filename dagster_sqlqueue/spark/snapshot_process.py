"""Process that keeps one snapshot of the database, started by `snapshot.keep`.

One is started for each read that its tasks share: it imports psycopg and nothing else.
"""

import json
import os
import sys
import threading
import time

import psycopg

_POLL_SECONDS = 0.5


def _main() -> None:
    order = json.loads(sys.stdin.readline())
    until = time.monotonic() + order["seconds"]
    user = ""
    try:
        with psycopg.connect(order["conninfo"], autocommit=True) as connection:
            user = connection.info.user
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            # Where this process cannot end it any more, the server does.
            connection.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{order['seconds'] + 10}s'".encode())
            connection.execute(order["lock"].encode())
            ((found,),) = connection.execute(order["export"].encode()).fetchall()
            print(json.dumps({"snapshot": found}), flush=True)  # noqa: T201
            pause = threading.Event()
            while time.monotonic() < until and _runs(order["driver"]):
                pause.wait(_POLL_SECONDS)
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
