"""The two ends of a trace, each a process: `python -m tests.traces.processes produce|publish|consume URL SCHEMA`."""

import sys

from dagster_sqlqueue import Backoff, Consumer, Job, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.topics import Topics
from tests.support import Work
from tests.traces.support import Recorded, print_spans, traced


def main(end: str, url: str, schema: str) -> None:
    """Enqueue a job or publish a message under a request's span, or work off what is there; print the spans."""
    recorded = Recorded()
    spec = QueueSpec("work", Work, max_attempts=3, backoff=Backoff(0, jitter=0))
    with SqlQueue(url, schema=schema) as queue:
        if end == "produce":
            with recorded.provider.get_tracer("shop").start_as_current_span("request"):
                traced(queue, recorded).enqueue(spec, Work(n=1))
        elif end == "publish":
            with recorded.provider.get_tracer("shop").start_as_current_span("request"):
                Topics(traced(queue, recorded)).publish("orders", Work(n=1))
        else:
            Consumer(queue, spec, _handle, hooks=[recorded.hooks]).drain()
    print_spans(recorded)


def _handle(job: Job[Work]) -> Retry | None:
    return Retry("not yet") if job.attempt == 1 else None


if __name__ == "__main__":
    main(*sys.argv[1:])
