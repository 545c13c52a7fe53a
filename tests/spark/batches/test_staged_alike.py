"""What Spark has staged is enqueued by a function of its own: it says of every column what enqueue_many says."""

import re

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from tests.support import value

_NOTED = "SELECT p.priority FROM sqlqueue.queue_priority AS p WHERE p.queue"
DIFFERENT = {
    "timeout_seconds": (
        "COALESCE(new.timeout, q.timeout_seconds)",
        "COALESCE(new.timeout_seconds, q.timeout_seconds)",
    ),
    "backoff": ("CAST(new.backoff AS float8[])", None),
    "tags": ("COALESCE(CAST(new.tags AS text[]), '{}')", "new.tags"),
    "queue_kept": (
        f":kept AND new.priority = ANY (ARRAY({_NOTED} = :queue))",
        f"new.priority = ANY (ARRAY({_NOTED} = target))",
    ),
    "payload": ("CAST(new.payload AS jsonb)", "new.payload"),
}
"""Where the jobs come from another form, arrays of texts there, a table with types of its own here; and the queue, which is
kept in any case here.
"""


@pytest.fixture
def staged(shared: SqlQueue) -> str:
    """The function as the newest migration left it."""
    schema = f'"{shared.database.schema}"'
    text: str = value(shared, "SELECT prosrc FROM pg_proc WHERE oid = to_regproc(%s)", f"{schema}.enqueue_staged")
    return flat(text.replace(f"{schema}.", "sqlqueue."))


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"--.*", "", text)).replace("( ", "(").replace(" )", ")")


def file(name: str) -> str:
    return flat(statements.source(name))


def columns(text: str) -> dict[str, str]:
    """What an insert of jobs says of each column."""
    found = re.search(r"INSERT INTO sqlqueue\.job \(([^)]*)\) SELECT (.*)", text)
    assert found
    parts, depth = [""], 0
    for character in found[2]:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if character == "," and not depth:
            parts.append("")
            continue
        parts[-1] += character
        if not depth and parts[-1].endswith(" FROM "):
            break
    parts[-1] = parts[-1].removesuffix(" FROM ")
    return dict(zip(found[1].split(", "), (part.strip() for part in parts), strict=True))


def between(text: str, begin: str, end: str) -> str:
    """The only part of a text from one word to another."""
    (found,) = re.findall(rf"{re.escape(begin)}.*?{re.escape(end)}", text)
    return str(found)


def test_every_column_of_a_staged_job_is_what_enqueue_many_makes_it(staged: str) -> None:
    many, here = columns(file("enqueue_many")), columns(staged)
    assert len(many) == 17
    assert {
        name: (many.get(name), here.get(name)) for name in many | here if many.get(name) != here.get(name)
    } == DIFFERENT


def test_duplicates_are_treated_alike(staged: str) -> None:
    many = file("enqueue_many")
    assert "ON CONFLICT DO NOTHING RETURNING" in many
    assert "ON CONFLICT DO NOTHING RETURNING" in staged
    numbered = "(SELECT k.keyed", "nextval('sqlqueue.job_order') END AS order_no"
    assert between(many, *numbered).replace(":queue", "target") == between(staged, *numbered)
    ordered = "ORDER BY new.unique_key", "new.no ON CONFLICT"
    assert between(many, *ordered) == between(staged, *ordered)


def test_a_job_that_was_sent_before_is_taken_back_alike(staged: str) -> None:
    ended = "(EXISTS (SELECT FROM sqlqueue.job_archive", "WHERE r.id = j.id)"
    assert between(file("drop_already_finished"), *ended) == between(staged, *ended)
