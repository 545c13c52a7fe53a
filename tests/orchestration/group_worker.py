"""A consumer of the tests' queue as a process: `python -m tests.orchestration.group_worker URL SCHEMA NAME [HANG]`.

It ends when its standard input does. With HANG, the handler of the twentieth job never returns.
"""

import sys
import threading

from dagster_sqlqueue import Consumer, Done, Job, Reject, SqlQueue
from tests.orchestration.support import WORK
from tests.support import Work

FOR_EVER = 86_400


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(url: str, schema: str, name: str, hang: bool) -> None:
    seen = 0

    def handle(job: Job[Work]) -> Done | Reject:
        nonlocal seen
        seen += 1
        if hang and seen == 20:
            say("hangs")
            threading.Event().wait()
        return Reject("every tenth") if job.payload.n % 10 == 0 else Done({"n": job.payload.n})

    with SqlQueue(url, schema=schema) as queue:
        consumer = Consumer(queue, WORK, handle, batch_size=50, worker=name)

        def stop() -> None:
            sys.stdin.read()
            consumer.stop()

        threading.Thread(target=stop, daemon=True).start()
        say("ready")
        consumer.drain(linger_seconds=FOR_EVER)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], len(sys.argv) > 4)
