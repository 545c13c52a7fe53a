"""What is done with the owner's rights for those who lack them, and what a role does that has no such help."""

import re
from datetime import date, timedelta

import psycopg
import pytest

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import AccessRefused, UnknownQueue
from dagster_sqlqueue.queue.maintenance import Maintenance
from tests.roles.support import Staff, relations, url_of
from tests.support import Work, rows, value


def test_what_runs_as_the_owner_is_pinned_and_not_for_everybody(shared: Staff) -> None:
    found = rows(
        shared.owner,
        "SELECT proname, proconfig, has_function_privilege('public', oid, 'EXECUTE') FROM pg_proc"
        " WHERE pronamespace = %s::regnamespace AND prosecdef ORDER BY proname",
        f'"{shared.schema}"',
    )
    assert [name for name, _, _ in found] == [
        "abandon_batch",
        "archive_day_is_over",
        "arm_waiter",
        "attach_archive_partition",
        "begin_archive_partition",
        "begin_beyond_deleted",
        "bury_spent_jobs",
        "close_group",
        "delete_queue",
        "disarm_waiter",
        "drop_archive_partition",
        "drop_staged",
        "end_leased",
        "end_locked",
        "enqueue_staged",
        "fold_group_tally",
        "force_maintenance",
        "forget_batch",
        "forget_batches",
        "hold_unclaimable",
        "job_ended",
        "join_group",
        "keep_archive_day",
        "keep_live",
        "keep_queue",
        "keep_queue_of_job",
        "known_followers",
        "members_added",
        "move_batch",
        "note_maintenance",
        "notify_followers",
        "notify_late_followers",
        "pack_batch",
        "packed_ids",
        "packed_jobs",
        "pass_wake",
        "promote_keys",
        "record_default_priority",
        "refuse_queue_of_packs",
        "refuse_queue_with_jobs",
        "refuse_unsettled_batch",
        "remove_expired_reply_queue",
        "remove_reply_queue",
        "renew_reply_queue",
        "replace_payloads",
        "settle_batch",
        "stats_of_queue",
        "succeed_batch",
        "succeed_leased",
        "succeed_locked",
        "summarize_archive",
        "sweep_batch",
        "take_maintenance",
        "trim_archive",
        "trim_archive_of_no_queue",
        "trim_events",
        "unpack_jobs",
        "wake_by_job",
    ]
    for _, settings, everybody in found:
        assert "search_path=pg_catalog, pg_temp" in settings
        assert not everybody


_SPIES = {
    "hashtext(text)": "integer",
    "to_char(date, text)": "text",
    "to_regclass(text)": "regclass",
    "timezone(text, timestamp)": "timestamptz",
    "timezone(text, timestamptz)": "timestamp",
    "format(text, VARIADIC text[])": "text",
    "statement_timestamp()": "timestamptz",
    "clock_timestamp()": "timestamptz",
    "pg_advisory_xact_lock(integer, integer)": "void",
    "count(integer)": "bigint",
    "pg_column_size(jsonb)": "integer",
}


def test_a_search_path_of_ones_own_changes_nothing_that_runs_as_the_owner(staff: Staff) -> None:
    """Functions and an operator that hide the system's, in a schema that comes first: each would show that it was called."""
    mine = f"{staff.schema}_mine"
    user = staff.user(Role.OPERATOR)
    rows(staff.owner, f'CREATE SCHEMA "{mine}" AUTHORIZATION "{user}"')
    try:
        with staff.connected(Role.OPERATOR) as connection:
            for spy, kind in _SPIES.items():
                body = "BEGIN RAISE EXCEPTION 'a spy runs as %', current_user; END"
                connection.execute(
                    f'CREATE FUNCTION "{mine}".{spy} RETURNS {kind} LANGUAGE plpgsql AS $spy${body}$spy$'.encode()
                )
            connection.execute("CREATE TEMP TABLE job_archive_default (finished_at timestamptz)")
            connection.execute("CREATE TEMP TABLE queue (name text, retention_days integer)")
            connection.execute(f'SET search_path = "{mine}", pg_temp, pg_catalog'.encode())
            with pytest.raises(psycopg.errors.RaiseException, match=f"a spy runs as {user}"):
                connection.execute("SELECT hashtext('x')")
            day = date(2020, 1, 1)
            for query in (
                "SELECT {s}.archive_day_is_over(%s, NULL)",
                "SELECT {s}.begin_archive_partition(%s), {s}.attach_archive_partition(%s)",
                "SELECT {s}.drop_archive_partition(%s, NULL)",
            ):
                connection.execute(staff.text(query), [day] * query.count("%s"))
            connection.execute(staff.text("SELECT * FROM {s}.stats_of_queue('work')"))
            connection.execute(staff.text("SELECT {s}.begin_archive_partition(%s)"), [day + timedelta(days=1)])
    finally:
        rows(staff.owner, f'DROP SCHEMA "{mine}" CASCADE')


def test_the_partitions_that_an_operator_makes_are_the_owners(staff: Staff) -> None:
    _drop_days(staff)
    assert staff.users[Role.OPERATOR].maintain().partitions_made
    owners = rows(
        staff.owner,
        "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class WHERE relnamespace = %s::regnamespace",
        f'"{staff.schema}"',
    )
    assert len(owners) == 1
    assert re.match("r_", str(owners[0][0])) is None


def _days(staff: Staff) -> list[str]:
    return [name for name, _ in relations(staff) if re.fullmatch(r"job_archive_\d{8}", name)]


def _drop_days(staff: Staff) -> None:
    rows(staff.owner, "DROP TABLE " + ", ".join(f"{{s}}.{name}" for name in _days(staff)))


def test_a_consumer_works_with_the_default_partition_alone(staff: Staff, spec: QueueSpec[Work]) -> None:
    _drop_days(staff)
    consumer = staff.users[Role.CONSUMER]
    staff.owner.enqueue(spec, Work(n=1))
    consumer.complete(consumer.claim("work", buckets=range(4), limit=1, worker="w"))
    assert value(staff.owner, "SELECT count(*) FROM ONLY {s}.job_archive_default") == 1
    assert staff.users[Role.OPERATOR].maintain().rows_moved == 1


def test_a_consumer_makes_the_partition_of_tomorrow(staff: Staff) -> None:
    _drop_days(staff)
    assert Maintenance(staff.users[Role.CONSUMER].catalog).ensure_partitions()
    assert len(_days(staff)) == 3


def test_a_consumer_without_the_right_to_make_its_queue_learns_who_has_it(shared: Staff) -> None:
    user = shared.users[Role.CONSUMER]
    with pytest.raises(UnknownQueue) as caught:
        Consumer(user, QueueSpec("not_made", Work), lambda job: None).drain()
    message = str(caught.value)
    assert "there is no queue 'not_made'" in message
    assert f'it takes the role "{shared.schema}_operator"' in message
    assert value(shared.owner, "SELECT count(*) FROM {s}.queue WHERE name = 'not_made'") == 0


def test_a_consumer_of_a_user_without_a_role_learns_of_the_one_that_claims(shared: Staff) -> None:
    """Its first statement, every role may run."""
    user = f"{shared.schema}_nobody"
    rows(shared.owner, f'CREATE ROLE "{user}" LOGIN')
    with SqlQueue(url_of(shared.url, user), schema=shared.schema) as nobody:
        for mode in ("leased", "transactional"):
            with pytest.raises(AccessRefused, match=f'it takes the role "{shared.schema}_consumer"'):
                Consumer(nobody, QueueSpec("work", Work), lambda job: None, mode=mode).drain()
