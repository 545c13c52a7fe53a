"""What the tests of transactional mode share."""

from collections.abc import Iterator
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, Mode, QueueSpec, SqlQueue
from tests.support import Work, rows


@pytest.fixture
def effect(queue: SqlQueue) -> Iterator[str]:
    """A table beside those of the queue. At the commit another one, `_once`, checks whether its rows are unique, and a third
    one, `_refused`, raises an error with the SQLSTATE written to it; for `missing` it reads a table that is not there.
    """
    rows(queue, "CREATE TABLE {s}.effect (n integer)")
    rows(queue, "CREATE TABLE {s}.effect_once (n integer, UNIQUE (n) DEFERRABLE INITIALLY DEFERRED)")
    rows(queue, "CREATE TABLE {s}.effect_refused (state text)")
    rows(
        queue,
        "CREATE FUNCTION {s}.effect_refused() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.state = 'missing' THEN PERFORM FROM {s}.effect_that_is_not_there; END IF;"
        " RAISE EXCEPTION USING ERRCODE = NEW.state; END $$",
    )
    rows(
        queue,
        "CREATE CONSTRAINT TRIGGER refused AFTER INSERT ON {s}.effect_refused DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION {s}.effect_refused()",
    )
    yield f"{queue.database.schema}.effect"
    rows(queue, "DROP TABLE {s}.effect, {s}.effect_once, {s}.effect_refused")
    rows(queue, "DROP FUNCTION {s}.effect_refused")


def locked(queue: SqlQueue, spec: QueueSpec[Work], handler: Any, **settings: Any) -> Consumer[Work]:
    return Consumer(queue, spec, handler, mode=Mode.TRANSACTIONAL, **settings)
