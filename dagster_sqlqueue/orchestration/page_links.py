"""The links of a queue's page: its sensor, the job that works it off, and the launchpad's jobs for its dead letters."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import dagster as dg

LAUNCHPAD_TAG = "sqlqueue/launchpad"
"""The tag of a launchpad job with its verb."""
QUEUE_TAG = "sqlqueue/queue"
"""The tag of a job with its queue; a job of several queues, or of any, has none."""
SENSOR_TAG = "sqlqueue/sensor"
"""The tag of a drain run with the sensor that requested it."""
QUEUES_TAG = "sqlqueue/queues"
"""The tag of a launchpad job of several queues with their names."""


@dataclass(frozen=True, slots=True)
class PageLinks:
    """The definitions that belong to a queue, for links.

    Attributes:
        location: the code location; None: not known, and names replace the links.
        repository: the repository in it.
        drain: the job that works the queue off.
        sensor: the sensor that starts its runs.
        show: the launchpad's job that shows a job of the queue; None: there is none.
        redrive: the one that redrives dead letters; None: there is none.
    """

    location: str | None = None
    repository: str | None = None
    drain: str | None = None
    sensor: str | None = None
    show: str | None = None
    redrive: str | None = None

    def metadata(self) -> dict[str, Any]:
        """The known links as metadata."""
        named = {"worked_off_by": self.drain, "show_job": self.show, "redrive_job": self.redrive}
        found: dict[str, Any] = {
            key: dg.MetadataValue.text(job)
            if self.location is None
            else dg.MetadataValue.job(job, self.location, repository_name=self.repository)
            for key, job in named.items()
            if job is not None
        }
        if self.sensor is not None and self.location is not None:
            at = f"/locations/{quote(self.location)}/sensors/{quote(self.sensor)}"
            found["started_by"] = dg.MetadataValue.md(f"sensor [{self.sensor}]({at})")
        return found

    def redrive_said(self, queue: str, ids: Sequence[str]) -> str:
        """Explain how to redrive these dead letters, in Markdown."""
        if self.redrive is None:
            return f"Redrive them in a shell: `sqlqueue retry {queue} ID …`, or `--all`."
        config = redrive_config(self.redrive, queue, ids)
        if self.location is None:
            return f"Redrive them with the job `{self.redrive}`."
        at = f"/locations/{quote(self.location)}/jobs/{quote(self.redrive)}/playground/setup?config={quote(config)}"
        return f"[Redrive these]({at}) in the launchpad, a dry run first; others with the job `{self.redrive}`."


NO_LINKS = PageLinks()


def redrive_config(job: str, queue: str, ids: Sequence[str], *, dry_run: bool = True) -> str:
    """The config with which the launchpad's job redrives these dead letters, as YAML."""
    fields = [f"queue: {queue}", "ids:", *(f"  - {json.dumps(id)}" for id in ids), f"dry_run: {json.dumps(dry_run)}"]
    return "\n".join(["ops:", f"  {job}_op:", "    config:", *(f"      {field}" for field in fields)])


def links_at_tick(context: dg.SensorEvaluationContext, queue: str, *, drain: str, sensor: str) -> PageLinks:
    """Find the links of a queue in the code location of its sensor."""
    origin = context.code_location_origin
    location = None if origin is None else origin.location_name
    found = {} if context.repository_def is None else _launchpad_jobs(context.repository_def, queue)
    return PageLinks(location, context.repository_name, drain, sensor, found.get("show"), found.get("redrive"))


def links_in_run(context: dg.OpExecutionContext, queue: str) -> PageLinks:
    """Find the links of a queue in the code location of a drain run; without one, as in a test, there are none."""
    origin = context.run.remote_job_origin
    if origin is None:
        return NO_LINKS
    place, found = origin.repository_origin, _launchpad_jobs(context.repository_def, queue)
    return PageLinks(
        place.code_location_origin.location_name,
        place.repository_name,
        context.job_name,
        context.run.tags.get(SENSOR_TAG),
        found.get("show"),
        found.get("redrive"),
    )


def _launchpad_jobs(repository: dg.RepositoryDefinition, queue: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for job in repository.get_all_jobs():
        verb = job.tags.get(LAUNCHPAD_TAG)
        its = job.tags.get(QUEUES_TAG) or job.tags.get(QUEUE_TAG) or queue
        # A job of this queue alone is preferred to one of several queues.
        if verb in ("show", "redrive") and queue in its.split(",") and (verb not in found or its == queue):
            found[verb] = job.name
    return found
