"""Tasks and histories of jobs without the values of sensitive fields, for whatever shows them."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_sqlqueue.errors import UnknownJob
from dagster_sqlqueue.payload import json_text
from dagster_sqlqueue.payload.redaction import redacted, redacted_text, scrubbed, values_in
from dagster_sqlqueue.people.model import JobEvent, Task

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue


def discreet_tasks(source: "SqlQueue", tasks: Sequence[Task]) -> list[Task]:
    """Tasks of people, as they may be shown: payload and result redacted."""
    names = {queue: source.catalog.sensitive_names(queue) for queue in {task.queue for task in tasks}}
    return [_redacted_task(task, names[task.queue]) if names[task.queue] else task for task in tasks]


def discreet_events(source: "SqlQueue", events: Sequence[JobEvent]) -> list[JobEvent]:
    """A job's history, as it may be shown: results redacted, nothing in it that its payload hides."""
    names = source.catalog.sensitive_names(events[0].queue) if events else frozenset()
    if not names:
        return list(events)
    values: set[str] = set()
    with contextlib.suppress(UnknownJob):
        values = values_in(json_text.read(source.job(events[0].job_id).payload), names)
    return [
        replace(
            event,
            reason=event.reason and scrubbed(event.reason, values),
            details=json.loads(scrubbed(json.dumps(redacted(event.details, names), ensure_ascii=False), values)),
        )
        for event in events
    ]


def _redacted_task(task: Task, names: frozenset[str]) -> Task:
    values = values_in(json_text.read(task.payload), names) if task.payload else set()
    result = task.state.result and scrubbed(redacted_text(task.state.result, names), values)
    payload = task.payload and redacted_text(task.payload, names)
    return replace(task, payload=payload, state=replace(task.state, result=result))
