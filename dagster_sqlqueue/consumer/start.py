"""Before the first claim: check what a consumer is given, make its queue if it is missing, and compare their settings."""

import json
import logging
from typing import Any

from dagster_sqlqueue.consumer.handler import Shape, check_concurrency
from dagster_sqlqueue.consumer.manager import Source
from dagster_sqlqueue.errors import AccessRefused, InvalidInput, UnknownQueue
from dagster_sqlqueue.model.declaration import declared, difference_cure, difference_line
from dagster_sqlqueue.model.job import Mode, mode_of
from dagster_sqlqueue.model.numbers import is_number
from dagster_sqlqueue.model.queue import QueueSettings, QueueSpec
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.claim_filter import ClaimFilter

logger = logging.getLogger("dagster_sqlqueue")


def check_mode(spec: QueueSpec[Any], mode: Mode | str, shape: Shape, filter: ClaimFilter | None) -> Mode:
    """Return the mode of a consumer, checked.

    Raises:
        InvalidInput: there is no such mode, or handler or filter cannot be used in it.
    """
    mode = mode_of(mode)
    if mode is Mode.TRANSACTIONAL and filter is not None:
        raise InvalidInput("a filter was given in transactional mode, which takes jobs in order; use leased mode")
    if mode is Mode.TRANSACTIONAL and shape is not Shape.JOB:
        raise InvalidInput(
            f"the handler of {spec.label} is {'a batch' if shape is Shape.BATCH else 'an async'} one, and transactional mode"
            " works one job after another on one connection; give it a plain function of one job, or use leased mode"
        )
    return mode


def check_side_by_side(spec: QueueSpec[Any], concurrency: int, shape: Shape, mode: Mode, source: Source | None) -> None:
    """Raise an error if a consumer cannot work on so many jobs side by side.

    Raises:
        InvalidInput: the number is out of range, or handler, mode or source allow none.
    """
    check_concurrency(concurrency)
    for refused, why in (
        (mode is Mode.TRANSACTIONAL, "in transactional mode, which works one job after another on one connection"),
        (shape is Shape.BATCH, "with a handler of a batch, which is called for one batch after another"),
        (source is not None, "with a source, which hands jobs out by itself"),
    ):
        if refused:
            raise InvalidInput(f"{spec.label}: concurrency={concurrency} was given {why}; leave it out")


def check_drain_times(budget_seconds: object, linger_seconds: object) -> None:
    """Raise an error if a drain cannot be told to end by these times.

    Raises:
        InvalidInput: one is no number.
    """
    if budget_seconds is not None and not is_number(budget_seconds):
        raise InvalidInput(f"budget_seconds is {budget_seconds!r}; give seconds, or None for no limit")
    if not is_number(linger_seconds):
        raise InvalidInput(f"linger_seconds is {linger_seconds!r}; give seconds, 0 to end when nothing is due")


def ensure_queue(queue: SqlQueue, spec: QueueSpec[Any], *, create: bool = True) -> QueueSettings:
    """The settings of a queue, which is made as the code declares it if it is not there. One that is there is not changed.

    Args:
        queue: where it is, or is to be.
        spec: the queue.
        create: whether it may be made.

    Raises:
        UnknownQueue: it is not there, and may not be made: the message says by whom it can be.
        DatabaseUnavailable: the database is away.
    """
    try:
        return queue.settings(spec.name)
    except UnknownQueue as missing:
        if not create:
            raise
        try:
            made = queue.create_queue(spec, change=False)
        except AccessRefused as refused:
            raise UnknownQueue(
                f"{missing}. A consumer makes its queue from the code where it may, and {refused}"
            ) from None
    logger.info("%s was made, as the code declares it", spec.label)
    return made


def compare_settings(queue: SqlQueue, spec: QueueSpec[Any], settings: QueueSettings, worker: str) -> str:
    """One line about the settings in which code and database differ, with what to do; empty: there are none. What the code
    declares is noted in the database, so that `sqlqueue doctor` knows it without the code.

    Args:
        queue: where the queue is.
        spec: the queue as the code declares it.
        settings: the queue as the database has it.
        worker: the name of the consumer that declares it.

    Raises:
        DatabaseUnavailable: the database is away.
    """
    code = declared(spec)
    parameters = {"queue": spec.name, "settings": json.dumps(code), "worker": worker}
    queue.database.run("declaration_note", parameters)
    line = difference_line(code, settings)
    return line and f"{line}. To have those of the code: {difference_cure(code, settings)}; else change the code"
