"""What `profile` samples: one drain, or one bulk enqueue; says at its end how much CPU it used."""

import json
import os
import sys
import time

from benchmarks.harness import SPEC, Event, event
from dagster_sqlqueue import Consumer, Job, SqlQueue


def _nothing(job: Job[Event]) -> None:
    pass


def main(what: str, jobs: int) -> None:
    """Do it."""
    with SqlQueue(os.environ["BENCH_URL"], schema=os.environ["BENCH_SCHEMA"]) as queue:
        payloads = [event(number) for number in range(jobs)] if what == "enqueue" else []
        began = time.process_time()
        if what == "enqueue":
            done = queue.enqueue_many(SPEC, payloads).inserted
        else:
            done = Consumer(queue, SPEC, _nothing, batch_size=100).drain().succeeded
        used = time.process_time() - began
    assert done == jobs, f"{done} of {jobs} jobs"
    print(json.dumps({"cpu": used}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
