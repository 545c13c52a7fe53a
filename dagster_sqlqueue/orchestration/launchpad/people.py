"""The launchpad's verbs about tasks of people."""

from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from dagster_sqlqueue import display
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.launchpad.config import (
    MOST_TASKS,
    ApproveConfig,
    AssignConfig,
    RejectConfig,
    TasksConfig,
    name_of,
)
from dagster_sqlqueue.orchestration.launchpad.run_report import Report, table
from dagster_sqlqueue.orchestration.markdown import SHOWN
from dagster_sqlqueue.people import HumanWork, Stage, Task
from dagster_sqlqueue.people.model import Action, check_name, check_reason
from dagster_sqlqueue.people.redaction import discreet_tasks
from dagster_sqlqueue.people.state_machine import refusal
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.selection import job_id

Act = Callable[[HumanWork, Sequence[UUID]], list[Task]]


def approve(source: SqlQueue, config: ApproveConfig) -> Report:
    """Approves submitted tasks: their jobs succeed. The person who did a task under four eyes cannot approve it."""
    check_reason(config.reason)

    def act(people: HumanWork, ids: Sequence[UUID]) -> list[Task]:
        return people.approve(ids, by=_given(config.by), reason=config.reason, revision=config.revision)

    return _decide(source, config, Action.APPROVE, [Stage.IN_REVIEW], "approved", act)


def reject(source: SqlQueue, config: RejectConfig) -> Report:
    """Rejects submitted tasks: they return to the persons who did them, or are open again."""
    if not (_lists(config) and config.reason is None):
        check_reason(config.reason, needed=True)

    def act(people: HumanWork, ids: Sequence[UUID]) -> list[Task]:
        return people.reject(
            ids, by=_given(config.by), reason=_given(config.reason), reopen=config.reopen, revision=config.revision
        )

    return _decide(source, config, Action.REJECT, [Stage.IN_REVIEW], "sent back", act)


def assign(source: SqlQueue, config: AssignConfig) -> Report:
    """Assigns tasks to a person, whether they are open or assigned to another."""
    if not (_lists(config) and config.to is None):
        check_name("to", config.to)
    check_reason(config.reason)

    def act(people: HumanWork, ids: Sequence[UUID]) -> list[Task]:
        return people.assign(
            ids, _given(config.to), by=_given(config.by), reason=config.reason, revision=config.revision
        )

    stages = [Stage.OPEN, Stage.ASSIGNED]
    done = "assigned" if config.to is None else f"assigned to {config.to}"
    return _decide(source, config, Action.ASSIGN, stages, done, act, assignee=config.to)


def _decide(
    source: SqlQueue,
    config: TasksConfig,
    action: Action,
    stages: Sequence[Stage],
    done: str,
    act: Act,
    *,
    assignee: str | None = None,
) -> Report:
    people = HumanWork(source)
    if not (_lists(config) and config.by is None):
        check_name("by", config.by)
    if len(config.ids) > MOST_TASKS:
        raise InvalidInput(f"ids names {len(config.ids):,} jobs; one run decides {MOST_TASKS} at most")
    if not config.ids and not config.dry_run:
        raise InvalidInput("ids is empty: name the jobs, as a dry run without ids lists them")
    queue = name_of(config)
    source.catalog.check_exists(queue)
    if config.ids:
        tasks = [people.task(id_) for id_ in dict.fromkeys(job_id(text.strip()) for text in config.ids)]
    else:
        tasks = [task for stage in stages for task in people.tasks(queue, stage, limit=SHOWN + 1)]
    elsewhere = [task for task in tasks if task.queue != queue]
    if elsewhere:
        raise InvalidInput(
            f"job {elsewhere[0].id} is of queue {elsewhere[0].queue!r}, not of {queue!r}; nothing was changed"
        )
    if not config.dry_run:
        after = act(people, [task.id for task in tasks])
        said = f"queue {queue}: {_tasks(len(after))} {_were(len(after))} {done} by {config.by}"
        return Report(queue, said, {"tasks_changed": len(after)}, _shown(source, config, after, {}), True)
    refused = {task.id: why for task in tasks if (why := _why_not(config, task, action, assignee))}
    could = len(tasks) - len(refused)
    said = f"queue {queue}: {_tasks(could)} could be {done}{'' if config.by is None else f' by {config.by}'}"
    if refused:
        said += f", {_tasks(len(refused))} could not: one run decides all or none"
    counts = {"tasks_would_be_changed": could, "tasks_would_be_refused": len(refused)}
    said += ". Nothing was changed: this was a dry run"
    return Report(queue, said, counts, _shown(source, config, tasks, refused))


def _why_not(config: TasksConfig, task: Task, action: Action, assignee: str | None) -> str | None:
    if not task.held:
        return "the job was changed without its task, which is void"
    if config.ids and config.revision not in (None, task.state.revision):
        return f"it is at revision {task.state.revision}"
    if config.by is None or (action is Action.ASSIGN and assignee is None):
        return None
    return refusal(task.state, action, config.by, assignee=assignee)


def _lists(config: TasksConfig) -> bool:
    """Whether a dry run names no tasks."""
    return config.dry_run and not config.ids


def _given(text: str | None) -> str:
    """What only a run without tasks may leave out."""
    assert text is not None
    return text


def _shown(source: SqlQueue, config: TasksConfig, tasks: Sequence[Task], refused: Mapping[UUID, str]) -> dict[str, str]:
    more = ["result", "payload"] if config.show_payloads else []
    rows = [
        [
            task.id,
            str(task.state.stage).replace("_", " "),
            task.state.assignee or "",
            task.state.done_by or "",
            task.state.revision,
            display.moment(task.state.available_at),
            _notes(task),
            refused.get(task.id, ""),
            *([task.state.result or "", task.payload or ""] if config.show_payloads else []),
        ]
        for task in discreet_tasks(source, tasks[:SHOWN])
    ]
    head = ["job", "stage", "assignee", "done by", "revision", "available", "notes", "refused, because", *more]
    return {"tasks": table(head, rows, len(tasks), "tasks")}


def _notes(task: Task) -> str:
    state = task.state
    review = "four eyes" if state.four_eyes else "review" if state.review else ""
    return ", ".join(word for word in ("on hold" if state.on_hold else "", review) if word)


def _tasks(number: int) -> str:
    return f"{number:,} {'task' if number == 1 else 'tasks'}"


def _were(number: int) -> str:
    return "was" if number == 1 else "were"
