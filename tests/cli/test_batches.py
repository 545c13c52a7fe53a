"""`batch list`, `show`, `abandon`, `forget`."""

from uuid import uuid4

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.errors import BatchLost
from dagster_sqlqueue.model.job import Mode
from dagster_sqlqueue.spark import batches
from dagster_sqlqueue.spark.batches import Batch
from tests.cli.support import Cli
from tests.support import Work, rows

LEASE = 3_600.0


def sealed(queue: SqlQueue, spec: QueueSpec[Work], key: str = "sizes/2013-01-01", jobs: int = 3) -> Batch:
    queue.enqueue_many(spec, [Work(n=n) for n in range(jobs)])
    return batches.seal(queue, "work", key, owner="run/7", mode=Mode.LEASED, lease_seconds=LEASE)


def left_behind(queue: SqlQueue, batch: Batch) -> None:
    """Its driver is gone, and its lease over."""
    rows(queue, "UPDATE {s}.batch SET lease_until = now() - interval '1 minute' WHERE id = %s", batch.id)


def published(queue: SqlQueue, spec: QueueSpec[Work], key: str = "sizes/2013-01-02", *, unmoved: bool = False) -> Batch:
    batch = sealed(queue, spec, key)
    with batches.publication(queue, batch, output={"table": "sizes"}, unmoved=unmoved):
        pass
    return batch


def states(queue: SqlQueue) -> list[tuple[str, int]]:
    return rows(queue, "SELECT state, attempt FROM {s}.job ORDER BY id")


def test_what_there_is_is_listed_the_latest_first(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    assert cli.run("batch", "list").stdout == "no batch\n"
    done, open = published(queue, spec, unmoved=True), sealed(queue, spec)
    failed = sealed(queue, spec, "sizes/2013-01-03", 1)
    batches.abandon(queue, failed, "the café is closed")
    listed = cli.json("batch", "list")
    assert [(one["id"], one["state"], one["job_count"]) for one in listed] == [
        (str(failed.id), "abandoned", 1),
        (str(open.id), "sealed", 3),
        (str(done.id), "published", 3),
    ]
    assert 0 < listed[1]["lease_seconds"] <= LEASE
    shown = cli.run("batch", "list", "work").stdout
    for text in ("sizes/2013-01-01", "run/7", "the café is closed", "not moved", "for "):
        assert text in shown
    assert [one["id"] for one in cli.json("batch", "list", "--state", "open")] == [str(open.id)]
    assert len(cli.json("batch", "list", "--state", "open", "--state", "abandoned")) == 2
    assert len(cli.json("batch", "list", "--limit", "1")) == 1
    assert "'opened' is no state of a batch" in cli.refused(Code.INPUT, "batch", "list", "--state", "opened")
    assert "nowhere" in cli.refused(Code.UNKNOWN, "batch", "list", "nowhere")


def test_one_is_shown_by_its_key_or_its_id(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    first = sealed(queue, spec)
    batches.abandon(queue, first, "the café is closed")
    second = batches.seal(queue, "work", first.key, owner="run/8", mode=Mode.LEASED, lease_seconds=LEASE)
    left_behind(queue, second)
    shown = cli.run("batch", "show", first.key).stdout
    for text in (
        f"batch {first.key} of queue work is sealed",
        str(second.id),
        "run/8",
        "by no process",
        "token",
        "attempt",
    ):
        assert text in shown
    assert cli.json("batch", "show", first.key)["attempt"] == 2
    assert "the café is closed" in cli.run("batch", "show", str(first.id)).stdout
    done = published(queue, spec, unmoved=True)
    shown = cli.run("batch", "show", done.key).stdout
    assert "not moved to their place yet" in shown
    assert '{"table": "sizes"}' in shown
    for unknown in ("sizes", str(uuid4())):
        assert f"there is no batch '{unknown}'" in cli.refused(Code.UNKNOWN, "batch", "show", unknown)


def test_a_batch_that_was_left_behind_is_given_up(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    batch = sealed(queue, spec)
    left_behind(queue, batch)
    preview = cli.json("batch", "abandon", batch.key, "--dry-run")
    assert (preview["changed"], preview["returned"]) == ([str(batch.id)], 3)
    assert states(queue) == [("running", 1)] * 3
    said = cli.run("batch", "abandon", batch.key, "--reason", "the machine burnt").stdout
    assert f"batch {batch.key} ({batch.id}) was abandoned" in said
    assert "jobs due again: 3" in said
    assert states(queue) == [("queued", 0)] * 3
    assert rows(queue, "SELECT DISTINCT error FROM {s}.job") == [("the machine burnt",)]
    again = cli.run("batch", "abandon", str(batch.id))
    assert again.exit_code == Code.PARTLY
    assert "it is abandoned" in again.stdout


def test_a_batch_that_is_held_is_given_up_only_if_asked(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    batch = sealed(queue, spec)
    refused = cli.run("batch", "abandon", batch.key)
    assert refused.exit_code == Code.PARTLY
    assert "it is held by 'run/7'" in refused.stdout
    assert states(queue) == [("running", 1)] * 3
    assert cli.json("batch", "abandon", batch.key, "--held")["returned"] == 3
    assert states(queue) == [("queued", 0)] * 3
    with pytest.raises(BatchLost), batches.publication(queue, batch, output={}):
        pass


def test_a_batch_in_a_transaction_is_left(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=1)])
    batch = batches.seal(queue, "work", "k", owner="run/7", mode=Mode.TRANSACTIONAL)
    for asked in ([], ["--dry-run"]):
        left = cli.run("batch", "abandon", "k", "--held", *asked)
        assert left.exit_code == Code.PARTLY
        assert "it is held by 'run/7'" in left.stdout
    with batches.publication(queue, batch, output={}):
        pass
    assert states(queue) == []


def test_batches_that_are_over_are_forgotten(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    done, unmoved = published(queue, spec), published(queue, spec, "sizes/2013-01-03", unmoved=True)
    open = sealed(queue, spec)
    asked = ["batch", "forget", done.key, unmoved.key, open.key]
    preview = cli.run(*asked, "--dry-run")
    assert preview.exit_code == Code.PARTLY
    assert len(cli.json("batch", "list")) == 3
    said = cli.run(*asked)
    assert said.exit_code == Code.PARTLY
    for text in (
        f"batch {done.key} ({done.id}) was deleted",
        "it is sealed: abandon it first",
        "not known to be in their",
    ):
        assert text in said.stdout
    assert cli.json("batch", "forget", unmoved.key, "--unmoved")["changed"] == [str(unmoved.id)]
    assert [one["id"] for one in cli.json("batch", "list")] == [str(open.id)]
    assert batches.unmoved(queue, unmoved.key) == []
    # What it published stays.
    assert rows(queue, "SELECT count(*) FROM {s}.job_archive WHERE batch_id = %s", unmoved.id) == [(3,)]
