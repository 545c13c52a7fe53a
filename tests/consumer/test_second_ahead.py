"""The second batch that is claimed ahead: when there is one, and when the first is enough."""

import math
from collections.abc import Callable

import pytest

from dagster_sqlqueue import Job, QueueSpec, SqlQueue
from tests.gate.patience import PATIENCE
from tests.support import Work, until
from tests.support.claimed_ahead import SendingClaims, consumer_of, gone_before, running
from tests.support.locked_ahead import SIZE, fill

pytestmark = pytest.mark.usefixtures("quick")


def drains_with(
    queue: SqlQueue, spec: QueueSpec[Work], at_a_time: int, act: Callable[[int], object] | None = None
) -> None:
    """Drain eight batches, of which so many are under lease at a time and never more, and do something at each job."""
    fill(queue, spec, 8 * SIZE)
    seen: list[int] = []

    def handler(job: Job[Work]) -> None:
        if len(seen) == 3 * SIZE:
            until(lambda: running(queue) == at_a_time * SIZE, "batches under lease")
        seen.append(running(queue))
        if act is not None:
            act(len(seen))

    summary = consumer_of(queue, spec, handler).drain()
    assert (summary.claimed, summary.succeeded, summary.stale) == (8 * SIZE, 8 * SIZE, 0)
    assert max(seen) == at_a_time * SIZE


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second batch is claimed ahead however little the consumer waits for the server, and however slow its handler is."""
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._MUCH", 0.0)
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._SECOND_SECONDS", math.inf)


def test_a_second_batch_is_claimed_ahead(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    drains_with(queue, spec, 3)


def test_a_consumer_that_does_not_wait_for_the_server_claims_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead._MUCH", math.inf)
    drains_with(queue, spec, 2)


@pytest.mark.parametrize("bound", ["_SECOND_SECONDS", "_SECOND_JOBS"])
def test_of_larger_or_slower_batches_one_is_claimed_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(f"dagster_sqlqueue.consumer.ahead_policy.{bound}", 0)
    drains_with(queue, spec, 2)


def test_a_consumer_that_becomes_slower_goes_on_with_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its fourth batch; the fifth and sixth are under lease already, and are worked off."""
    after: list[int] = []

    def slow_down(number: int) -> None:
        if number == 3 * SIZE + 1:
            monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._SECOND_SECONDS", 0.0)
        if number == 5 * SIZE + 1:
            until(lambda: running(queue) == 2 * SIZE, "batches under lease")
        if number > 5 * SIZE:
            after.append(running(queue))

    drains_with(queue, spec, 3, slow_down)
    assert max(after) == 2 * SIZE


def test_a_consumer_that_gets_no_second_connection_goes_on_with_one_batch_ahead(
    queue: SqlQueue, spec: QueueSpec[Work], sending_claims: SendingClaims, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dagster_sqlqueue.consumer.ahead_policy._AGAIN_SECONDS", PATIENCE)
    sending_claims.lost_at, sending_claims.lose = 3, gone_before
    drains_with(queue, spec, 2)
    # The third to the eighth batch were claimed ahead, and a ninth was looked for.
    assert sending_claims.sent == 7 + 1
