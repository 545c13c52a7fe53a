"""The library on the real PostgreSQL against a queue in pure Python, step by step; and bugs that this must find."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from dagster_sqlqueue.db import statements
from tests.gate.patience import sized
from tests.gate.plugin import note_figures
from tests.statemachine.drawing import KINDS
from tests.statemachine.machine import acting
from tests.statemachine.remembering import RememberingMachine
from tests.statemachine.server import Server
from tests.support.run_by_functions import CALLED_AS

RUNS = settings(
    max_examples=sized(20, 50),
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)

PLANTS: dict[str, tuple[str, str, str, str]] = {
    "an ending without the fence": ("round_robin", "complete", "AND j.lease_no = ended.lease_no", ""),
    "an ending of many alike without the fence": ("round_robin", "complete_plain", "AND j.lease_no = %(lease_no)s", ""),
    "a hint that is another priority's": (
        "round_robin",
        "claim_round_robin",
        "hint.begin[10 - level.priority]",
        "hint.begin[1 + level.priority]",
    ),
    "a retry that spends no attempt": ("plain", "requeue", "THEN 0 ELSE 1 END", "THEN 1 ELSE 1 END"),
    "a snooze that is due in the past": (
        "plain",
        "requeue",
        "GREATEST(back.moment, statement_timestamp())",
        "back.moment",
    ),
    "a claim that puts the lowest priority first": (
        "round_robin",
        "claim_round_robin",
        "ORDER BY p.priority DESC",
        "ORDER BY p.priority",
    ),
    "a claim that goes by settings of yesterday": (
        "round_robin",
        "claim_round_robin",
        "q.revision = %(revision)s",
        "q.revision >= %(revision)s",
    ),
    "a merge of buckets that forgets the order": (
        "fifo",
        "pick_fifo",
        "ORDER BY j.priority DESC,",
        "ORDER BY j.bucket,",
    ),
    "a hold that spends the attempt": ("plain", "hold_running", "j.max_attempts) - 1", "j.max_attempts)"),
    "a key that nobody brings back": (
        "ordered",
        "key_promote",
        "AS promoted (id)",
        "AS promoted (id) LIMIT 0",
    ),
    "a turn for every job of a key": (
        "ordered",
        "key_turns",
        "WHERE free.first IS NULL OR free.head = free.first",
        "",
    ),
    "a limit of a key that counts dead leases": (
        "per_key",
        "key_turns",
        "AND r.state = 'running' AND r.available_at > statement_timestamp()",
        "AND r.state = 'running'",
    ),
    "a heartbeat that comes back to life": (
        "per_key",
        "heartbeat",
        "AND (j.available_at > statement_timestamp() OR NOT (j.limited OR j.order_no IS NOT NULL))",
        "",
    ),
    "a redrive that begins the leases anew": ("plain", "redrive", "l.lease_no, l.max_attempts", "0, l.max_attempts"),
    "a redrive that keeps the payload that was to be replaced": (
        "plain",
        "redrive",
        "COALESCE(CAST(%(payload)s AS jsonb), l.payload)",
        "l.payload",
    ),
    "a replacement of a payload that releases nothing": (
        "plain",
        "replace_payload",
        "CAST(%(release)s AS boolean)",
        "CAST(%(release)s AS boolean) AND false",
    ),
    "a replacement that keeps the priority": ("round_robin", "enqueue_replace", "priority = live.priority,", ""),
    "a release that forgets the others": (
        "plain",
        "hold_queued",
        "available_at = 'infinity'",
        "available_at = j.run_at",
    ),
    "work in a transaction that raises no lease": (
        "round_robin",
        "return_locked",
        "lease_no = j.lease_no + 1",
        "lease_no = j.lease_no",
    ),
    "a transaction that shows nobody that a unique key is free": (
        "round_robin",
        "pick_round_robin",
        "j.unique_until_claim AND j.lease_no = 0 AS frees_key",
        "false AS frees_key",
    ),
    "a claim that takes jobs whose lease ran out together": (
        "round_robin",
        "claim_round_robin",
        "COALESCE(seen.before, %(limit)s)",
        "%(limit)s",
    ),
    "a lease that spends the attempts of all that ran out beside it": (
        "round_robin",
        "claim_round_robin",
        "j.state, j.alone) + 1",
        "j.state, true) + 1",
    ),
    "a limit that counts nothing": (
        "limited",
        "limit_allowance",
        "WHERE j.queue = %(queue)s AND j.limited",
        "WHERE false AND j.limited",
    ),
}
"""Bugs by name: the kind of queue that shows it, the statement, what is taken out of it, and what is put there."""

FOUND_LATE = (
    "a replacement that keeps the priority",
    "a heartbeat that comes back to life",
    "a hint that is another priority's",
    "a transaction that shows nobody that a unique key is free",
    "a limit that counts nothing",
    "an ending of many alike without the fence",
    "work in a transaction that raises no lease",
)
"""Those that only many runs bring out."""


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    server = Server(url, "t_model")
    yield server
    server.close()


def run(server: Server, kind: str, runs: settings) -> None:
    parts = {"server": server, "kind": kind, "act": acting(RememberingMachine)}
    machine = type(f"{kind}_queue", (RememberingMachine,), parts)
    run_state_machine_as_test(machine, settings=runs)


@pytest.mark.timeout(900)  # a divergence is reduced for up to five minutes
@pytest.mark.parametrize("kind", KINDS)
def test_the_library_does_what_the_model_says(server: Server, kind: str) -> None:
    run(server, kind, RUNS)
    note_figures(runs=RUNS.max_examples, steps_of_each=RUNS.stateful_step_count)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.prove if name in FOUND_LATE else ()) for name in PLANTS]
)
def test_a_planted_bug_is_found(server: Server, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, statement, old, new = PLANTS[name]
    load, called = statements.load, CALLED_AS.get(statement, statement)
    if old not in load(statement, "t_model"):
        pytest.fail(f"{statement} does not hold {old!r}")

    def planted(wanted: str, *given: str) -> str:
        return load(statement, *given).replace(old, new) if wanted == called else load(wanted, *given)

    monkeypatch.setattr(statements, "load", planted)
    with pytest.raises((AssertionError, Flaky)):
        run(
            server,
            kind,
            settings(RUNS, max_examples=200, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False),
        )
