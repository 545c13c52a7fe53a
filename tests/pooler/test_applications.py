"""Two applications in one pool: a session that worked for ours is as the server made it when it works for another."""

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Done, Job, Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.doctor import examine
from tests.support import Work, own_server
from tests.support.pgbouncer import pgbouncer

LOCKS = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"


def settings(url: str) -> dict[str, str]:
    """What is set where nothing is said."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        # The server gets to know these settings with its first function in the language.
        connection.execute("DO $$ BEGIN END $$")
        return {name: shown for name, shown, _ in connection.execute("SHOW ALL")}


@pytest.mark.parametrize("mode", list(Mode))
def test_another_application_finds_the_sessions_as_they_were(spec: QueueSpec[Work], mode: Mode) -> None:
    """The pool has one session, which both get, and its settings are others than ours."""
    with own_server(
        settings=["fsync=off", "TimeZone=Asia/Tokyo", "default_transaction_isolation=serializable"]
    ) as server:
        with SqlQueue(server.url) as owner:
            owner.migrate()
            owner.create_queue(spec)
        with pgbouncer(server.url, sessions=1) as through:
            before = settings(through)
            with SqlQueue(f"{through}&pooler=transaction", statement_timeout=60) as queue:
                queue.enqueue_many(spec, [Work(n=n) for n in range(3_000)])
                seen = set()

                def handler(job: Job[Work]) -> Done:
                    seen.add(job.payload.n)
                    return Done()

                assert Consumer(queue, spec, handler, mode=mode).drain().succeeded == len(seen) == 3_000
                assert queue.maintain().ran
                queue.pause("work")
                assert str(queue.settings("work").paused_at).endswith("+00:00")
                assert all(check.name for check in examine(queue.database))
            assert settings(through) == before
            with psycopg.connect(through, autocommit=True, prepare_threshold=None) as theirs:
                for query in (
                    LOCKS,
                    "SELECT count(*) FROM pg_prepared_statements",
                    "SELECT count(*) FROM pg_listening_channels()",
                ):
                    assert theirs.execute(query.encode()).fetchone() == (0,)
