"""A queue of one's own: `SQLQUEUE_URL=postgresql://… python docs/first_queue.py`, or load it with `dg dev -f`."""

import dagster as dg
from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, QueueSpec
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_definitions, queue_consumer


class Email(BaseModel):
    to: str
    subject: str


emails = QueueSpec("emails", Email, max_attempts=3)


@queue_consumer(emails)
def send_email(job: Job[Email]) -> Done:
    return Done({"sent_to": job.payload.to})


defs = build_sqlqueue_definitions(send_email, resource=SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL")))

if __name__ == "__main__":
    import os

    from dagster_sqlqueue import SqlQueue

    with SqlQueue(os.environ["SQLQUEUE_URL"]) as queue:
        queue.migrate()
        queue.create_queue(emails)
        print(queue.enqueue(emails, Email(to="ada@example.org", subject="Hello")))
