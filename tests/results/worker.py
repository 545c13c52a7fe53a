"""What the processes of the tests do."""

import json
import os
import sys
from uuid import UUID

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.results import Results
from tests.gate.patience import PATIENCE


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def main(url: str, schema: str, how: str, *ids: str) -> None:
    """Wait for jobs; says when it begins, and how each of them ended."""
    with SqlQueue(url, schema=schema) as queue, Results(queue, listen=how == "listening") as results:
        if how == "replying":
            reply = results.reply_queue(ttl_seconds=1)
            say(pid=os.getpid(), queue=reply.name)
            reply.receive()
        say(pid=os.getpid())
        outcomes = results.wait_many(map(UUID, ids), timeout_seconds=2 * PATIENCE)
        for id, outcome in outcomes.items():
            say(id=str(id), state=outcome.state, result=outcome.result)


if __name__ == "__main__":
    main(*sys.argv[1:])
