"""What a process of a fault run is given: its task, the bug that is planted in it, and the history that it writes."""

import json
import os
import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_sqlqueue import Mode
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.schema_name import DEFAULT_SCHEMA
from tests.support.run_by_functions import CALLED_AS

PLANTS: dict[str, tuple[str, ...]] = {
    "an ending without the fence": ("complete_plain", "AND j.lease_no = %(lease_no)s", "AND 0 <= %(lease_no)s"),
    "an outcome without the fence": ("complete", "AND j.lease_no = ended.lease_no", ""),
    "a claim that does not lock": (
        "claim_round_robin",
        "FOR UPDATE SKIP LOCKED",
        "",
        # Found by its place, a row that another has claimed meanwhile would not be claimed again.
        "j.ctid = taken.version",
        "j.id = (SELECT o.id FROM {job} AS o WHERE o.ctid = taken.version)",
    ),
    "a lease number that does not grow": ("claim_round_robin", "lease_no = j.lease_no + 1", "lease_no = j.lease_no"),
    "an ending that does not reach the archive": (
        "complete_plain",
        "FROM finished",
        "FROM finished WHERE hashtext(id::text) %% 10 <> 0",
    ),
    "an ending that leaves the job": (
        "complete_plain",
        "DELETE FROM {job} AS j",
        "UPDATE {job} AS j SET state = 'queued', available_at = statement_timestamp()",
    ),
    "a claim that takes running jobs": (
        "claim_round_robin",
        "AND j.available_at <= statement_timestamp()",
        "AND (j.available_at <= statement_timestamp() OR j.state = 'running')",
    ),
    "a limit without its lock": ("limit_lock", "pg_advisory_xact_lock(", "int4larger("),
    "a limit that allows one more": ("claim_limited", "q.max_running - ", "q.max_running + 1 - "),
    "a rate that allows some more": ("claim_limited", "q.rate_limit - ", "q.rate_limit + 3 - "),
    "starts that are not noted": (
        "claim_limited",
        "SELECT count(*) AS starts FROM claimed",
        "SELECT LEAST(1, count(*)) AS starts FROM claimed",
    ),
    "a limit beside turns that allows one more": ("limit_allowance", "q.max_running - ", "q.max_running + 1 - "),
    "starts beside turns that are not noted": (
        "rate_note",
        "(queue, starts) VALUES (",
        "(started_at, queue, starts) VALUES ('-infinity', ",
    ),
    "a pick that does not lock": ("pick_round_robin", "FOR UPDATE SKIP LOCKED", ""),
    "a heartbeat that revives a lease": (
        "heartbeat",
        "AND (j.available_at > statement_timestamp() OR NOT (j.limited OR j.order_no IS NOT NULL))",
        "",
    ),
    "a turn without its lock": ("key_try", "pg_try_advisory_xact_lock(", "0 <= int4larger("),
    "a key that may run one more": ("key_turns", "free.ids[1:free.places]", "free.ids[1:free.places + 1]"),
    "a turn for any that comes": ("key_turns", "WHERE free.first IS NULL OR free.head = free.first", ""),
    "turns that nobody is given": ("key_promote", "AS promoted (id)", "AS promoted (id) LIMIT 0"),
}
"""Bugs by name: the statement, what is taken out of it, and what is put there; of some, more of the two."""


@dataclass(frozen=True)
class Task:
    """What one process is to do.

    Attributes:
        history: the file that it writes.
        lease_seconds, batch_size, job_timeout_seconds, linger_seconds: the consumer's.
        pause: seconds that each job takes.
        hang_until: the handler waits for this file to exist.
        hang_at: and does so from this job on, counted from 1.
        go: the process begins when this file exists.
        plant: a bug out of `PLANTS`.
        hesitate: a producer commits up to so many seconds after it has enqueued.
        jobs, keys: how many a producer makes, and of how many ordering keys; 0: without a key.
        goes_on_until: it makes more than that, until this file exists.
        prefix: what the keys begin with.
        outcomes: what the handler says, out of `OUTCOMES`.
        ids: the jobs that a process waits for.
        reports: it says that it begins, and after a hang that it is nearly done.
        dies: the process kills itself at a random moment of the nth call of this verb.
        ahead: how many batches it claims ahead, one or two, however slow the machine is; 0: as it is.
        burn_until: the handler computes until this file exists.
        mode: the consumer's; in transactional mode the handler writes the job's id into the table `effect`.
        seed: of its luck.
    """

    url: str
    schema: str
    history: Path
    lease_seconds: float = 300.0
    batch_size: int = 100
    job_timeout_seconds: float | None = None
    linger_seconds: float = 0.0
    pause: float = 0.0
    hang_until: Path | None = None
    hang_at: int = 1
    go: Path | None = None
    plant: str | None = None
    jobs: int = 0
    goes_on_until: Path | None = None
    keys: int = 0
    prefix: str = "key "
    hesitate: float = 0.0
    outcomes: str | None = None
    ids: Sequence[str] = ()
    reports: bool = False
    dies: tuple[str, int] | None = None
    ahead: int = 0
    burn_until: Path | None = None
    mode: Mode = Mode.LEASED
    seed: int = 0


class History:
    """A file of events. A line is there as soon as the call returns, whatever happens to the process then."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, **facts}) + "\n").encode())


def die(after: float) -> None:
    threading.Event().wait(after)
    os.kill(os.getpid(), signal.SIGKILL)


def plant(name: str) -> None:
    """Put a bug into a statement of this process; one that a function runs for it is sent by itself then."""
    statement, *changes = PLANTS[name]
    load = statements.load
    called = CALLED_AS.get(statement, statement)

    def planted(wanted: str, schema: str = DEFAULT_SCHEMA, dialect: str = "postgresql") -> str:
        if wanted != called:
            return load(wanted, schema, dialect)
        text = load(statement, schema, dialect)
        old_and_new = [part.replace("{job}", f'"{schema}".job') for part in changes]
        for old, new in zip(old_and_new[::2], old_and_new[1::2], strict=True):
            assert old in text, f"{statement} does not hold {old!r}"
            text = text.replace(old, new)
        return text

    statements.load = planted  # type: ignore[assignment]


def wait_for(path: Path) -> None:
    """Return when the file exists."""
    pause = threading.Event()
    while not path.exists():
        pause.wait(0.005)
