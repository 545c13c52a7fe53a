"""Rows that no producer of ours writes, for tables that lost their constraints, or got them back afterwards."""

from collections.abc import Sequence
from typing import Any

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from tests.support import Work, rows

DIGITS = "9" * 5_000
DEEP = '{"n": 1, "list": ' + "[" * 3_000 + "]" * 3_000 + "}"
ODD: dict[str, dict[str, str]] = {
    "due for ever": {"available_at": "-infinity"},
    "due before Christ": {"available_at": "0044-03-15 BC"},
    "wanted for ever": {"run_at": "-infinity"},
    "never wanted": {"run_at": "infinity"},
    "made before Christ": {"created_at": "0044-03-15 BC"},
    "made in the year 20000": {"created_at": "20000-01-01"},
    "a place in no line": {"order_no": "7"},
    "a place before the first": {"order_no": "-7", "ordering_key": "k"},
    "a bucket that no queue has": {"bucket": "30000"},
    "a negative bucket": {"bucket": "-3"},
    "a bucket that this queue never had": {"bucket": "900"},
    "a priority that there is not": {"priority": "12"},
    "a negative priority": {"priority": "-2"},
    "the last lease number": {"lease_no": str(2**63 - 1)},
    "the last attempt number": {"attempt": str(2**31 - 1), "max_attempts": str(2**31 - 1)},
    "fewer attempts than none": {"attempt": str(-(2**31))},
    "a backoff of one number": {"backoff": "{1}"},
    "a backoff of nothing": {"backoff": "{NULL,NULL,NULL,NULL}"},
    "a timeout that is no number": {"timeout_seconds": "NaN"},
    "a negative timeout": {"timeout_seconds": "-1"},
    "tags in tags": {"tags": "{{a,b},{c,d}}"},
    "tags of nothing": {"tags": "{NULL}"},
    "a state that there is not": {"state": "asleep"},
    "a key of odd characters": {"ordering_key": "\u202e\n'\"\\{}%s\U0001f4a5" + "x" * 5_000},
    "wanted to be cancelled for ever": {"cancel_requested_at": "infinity"},
    "no object": {"payload": "[1, 2]"},
    "nothing": {"payload": "null"},
    "a very long number": {"payload": f'{{"n": {DIGITS}}}'},
    "a very large number": {"payload": '{"n": 1e400}'},
    "a very long number elsewhere": {"payload": f'{{"n": 1, "other": {DIGITS}}}'},
    "nested very deeply": {"payload": DEEP},
    "a very long name": {"payload": '{"' + "x" * 100_000 + '": 1}'},
}
"""By a word for it, the columns that make a row an odd one."""

_PLAIN = {
    "id": "gen_random_uuid()",
    "queue": "'work'",
    "bucket": "1",
    "priority": "0",
    "available_at": "now() - interval '1 minute'",
    "run_at": "now()",
    "max_attempts": "3",
    "payload": "'{{\"n\": -1}}'",
}
_GOOD = "tags @> '{{good}}'"


def insert_odd(queue: SqlQueue, what: str) -> None:
    """Put one such row on the queue `work`."""
    columns = {**_PLAIN, **dict.fromkeys(ODD[what], "%s")}
    rows(
        queue,
        f"INSERT INTO {{s}}.job ({', '.join(columns)}) VALUES ({', '.join(columns.values())})",
        *ODD[what].values(),
    )


def fill(queue: SqlQueue, spec: QueueSpec[Work], odd: Sequence[str]) -> None:
    """Twenty good jobs before and behind odd ones, in every bucket, some with keys."""
    for begin in (0, 10):
        queue.enqueue_many(
            spec,
            [
                NewJob(Work(n=n), ordering_key=f"k{n % 3}" if n % 2 else None, tags=["good"])
                for n in range(begin, begin + 10)
            ],
        )
        if begin == 0:
            earlier = "available_at = available_at - interval '1 hour', run_at = run_at - interval '1 hour'"
            rows(queue, f"UPDATE {{s}}.job SET {earlier}")
            for what in odd:
                insert_odd(queue, what)


def constraints(queue: SqlQueue, table: str = "job") -> list[tuple[str, str]]:
    """The names of the CHECK constraints of a table and of its columns' domains, and their texts as a table's."""
    return rows(
        queue,
        "SELECT c.conname, pg_get_constraintdef(c.oid) FROM pg_constraint AS c"
        " WHERE c.contype = 'c' AND c.conrelid = CAST(%s AS regclass)"
        " UNION ALL SELECT c.conname, regexp_replace(pg_get_constraintdef(c.oid), '\\mVALUE\\M', a.attname, 'g')"
        " FROM pg_constraint AS c JOIN pg_attribute AS a ON a.atttypid = c.contypid"
        " WHERE c.contype = 'c' AND a.attrelid = CAST(%s AS regclass)",
        *[f"{queue.database.schema}.{table}"] * 2,
    )


def loosen(queue: SqlQueue, names: Sequence[tuple[str, str]]) -> None:
    """Take the constraints of live jobs away."""
    for name, _ in names:
        rows(queue, f"ALTER TABLE {{s}}.job DROP CONSTRAINT IF EXISTS {name}")
        for (domain,) in rows(
            queue,
            "SELECT CAST(CAST(c.contypid AS regtype) AS text) FROM pg_constraint AS c"
            " JOIN pg_attribute AS a ON a.atttypid = c.contypid"
            " WHERE c.conname = %s AND a.attrelid = CAST('{s}.job' AS regclass)",
            name,
        ):
            rows(queue, f"ALTER DOMAIN {domain} DROP CONSTRAINT {name}")


def bring_back(queue: SqlQueue, found: Sequence[tuple[str, str]]) -> None:
    """Bring them back for rows that come, or change, from now on: those that are there stay as they are.

    All of them as the table's: that refuses every change of such a row, where a domain's refuses changes of its column.
    """
    for name, text in found:
        safe = text.replace("{", "{{").replace("}", "}}")
        rows(queue, f"ALTER TABLE {{s}}.job ADD CONSTRAINT {name} {safe} NOT VALID")


def good(queue: SqlQueue) -> dict[int, tuple[Any, ...]]:
    """Of the good jobs, by number, the state and the attempt."""
    found = rows(queue, f"SELECT CAST(payload ->> 'n' AS integer), state, attempt FROM {{s}}.job_all WHERE {_GOOD}")
    return {n: tuple(more) for n, *more in found}


def others(queue: SqlQueue) -> list[tuple[str, str | None]]:
    """Of the odd ones, the state and the error."""
    return rows(queue, f"SELECT state, error FROM {{s}}.job_all WHERE NOT {_GOOD}")
