"""Two queues and what handles their jobs, for the examples of this directory: put yours in their place.

`sqlqueue create emails`, `sqlqueue create reports`, then `sqlqueue work handlers:send_email` in this directory.
"""

from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, QueueSpec, handles


class Email(BaseModel):
    """A message to be sent."""

    to: str
    subject: str = ""


class Report(BaseModel):
    """A report to be written."""

    name: str


emails = QueueSpec("emails", Email)
reports = QueueSpec("reports", Report)


@handles(emails)
def send_email(job: Job[Email]) -> Done:
    """Say whom the message would go to."""
    return Done({"sent_to": job.payload.to})


@handles(reports)
def write_report(job: Job[Report]) -> Done:
    """Say which report would be written."""
    return Done({"written": job.payload.name})
