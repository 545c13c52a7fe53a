"""`pause`, `resume`, `rebucket`, `region`, `delete-queue`."""

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue import Ending
from tests.cli.support import Cli
from tests.support import Work, claim


def test_pause_and_resume(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    assert "queue work is paused since 20" in cli.run("pause", "work").stdout
    again = cli.json("pause", "work")
    assert (again["name"], again["drained"]) == ("work", None)
    assert again["paused_at"].endswith("+00:00")
    assert claim(queue) == []
    assert "sqlqueue resume work" in cli.run("queues", "work").stdout
    assert cli.run("resume", "work").stdout == "queue work hands out jobs\n"
    assert cli.json("resume", "work")["paused_at"] is None
    assert len(claim(queue)) == 1


def test_pause_until_a_moment(cli: Cli, queue: SqlQueue) -> None:
    assert "until 2037-01-31 08:00:00" in cli.run("pause", "work", "--until", "2037-01-31T08:00:00Z").stdout
    assert "until 2037-01-31 08:00:00" in cli.run("queues", "work").stdout
    assert cli.json("pause", "work", "--for", "2h")["paused_until"] is not None
    assert queue.settings("work").paused_until is not None
    assert cli.json("pause", "work")["paused_until"] is None
    both = cli.run("pause", "work", "--for", "2h", "--until", "2037-01-31T08:00:00Z")
    assert (both.exit_code, "give one of --until and --for" in both.stderr) == (2, True)
    assert "until is" in cli.run("pause", "work", "--until", "2001-01-31T08:00:00Z").stderr


def test_pause_waits_for_what_runs(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    (job,) = claim(queue)
    late = cli.run("pause", "work", "--wait", "--timeout", "10ms")
    assert late.exit_code == 6
    assert "jobs of it are still running" in late.stdout
    queue.finish([Ending(job, ArchiveState.SUCCEEDED)])
    assert cli.json("pause", "work", "--wait", "--timeout", "5min")["drained"] is True
    assert "no job of it is running any more" in cli.run("pause", "work", "--wait").stdout


def test_rebucket(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(100)])
    assert cli.json("rebucket", "work", "8")["bucket_count"] == 8
    fewer = cli.run("rebucket", "work", "2").stdout
    assert fewer == "queue work has 2 buckets; 2 more still hold jobs and are being emptied\n"
    claim(queue)
    settings = cli.json("queues", "work")[0]
    assert (settings["bucket_count"], settings["claim_buckets"]) == (2, 4)


def test_regions(cli: Cli) -> None:
    assert cli.run("region", "work").stdout == "queue work: local 0-3\n"
    assert cli.run("region", "work", "eu", "--buckets", "0-1,3").stdout == "queue work: eu 0-1, 3; local 2\n"
    assert cli.json("region", "work")["regions"] == ["eu", "eu", "local", "eu"]
    assert "eu 0-1, 3; local 2" in cli.run("queues", "work").stdout
    assert cli.json("enqueue", "work", "{}", "--region", "eu")["inserted"] == 1


def test_what_is_refused(cli: Cli, queue: SqlQueue) -> None:
    before = queue.settings("work")
    for arguments, said in (
        (["pause", "work", "--timeout", "5"], "give --wait as well"),
        (["pause", "work", "--until", ""], "--until '' is not a time"),
        (["pause", "work", "--wait", "--timeout", "soon"], "--timeout is 'soon'"),
        (
            ["pause", "work", "--until", "2020-01-31T08:00:00+02:00"],
            "until is 2020-01-31 06:00:00+00:00, which has passed",
        ),
        (
            ["pause", "work", "--for", "0"],
            "--for is '0'; give a time of more than 0, or leave it out to pause without end",
        ),
        (["pause", "Work"], "is not usable"),
        (["rebucket", "work", "0"], "it must be 1 to 1024"),
        (["rebucket", "work", "1025"], "it must be 1 to 1024"),
        (["rebucket", "work", "many"], "the number of buckets is 'many'"),
        (["rebucket", "work"], "Missing argument 'N'"),
        (["region", "work", "eu"], "give both a region and --buckets"),
        (["region", "work", "--buckets", "1"], "give both a region and --buckets"),
        (["region", "work", "eu", "--buckets", "3-1"], "write bucket numbers"),
        (["region", "work", "eu", "--buckets", ""], "write bucket numbers"),
        (["region", "work", "eu", "--buckets", "0,9"], "buckets name 9, and queue 'work' has the buckets 0 to 3"),
        (["region", "work", "eu", "--buckets", "2-999"], "buckets name 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, …, and queue"),
        (["region", "work", "", "--buckets", "0"], "region is ''"),
    ):
        assert said in cli.refused(2, *arguments)
    assert queue.settings("work") == before


def test_an_unknown_queue(cli: Cli) -> None:
    for arguments in (["pause"], ["resume"], ["rebucket", "8"], ["region"], ["region", "eu", "--buckets", "0"]):
        name, *rest = arguments
        assert "there is no queue 'nosuch'" in cli.refused(5, name, "nosuch", *rest)


def test_delete_queue(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    for dry_run in ([], ["--dry-run"]):
        line = cli.refused(Code.INPUT, "delete-queue", "work", *dry_run)
        assert "queue 'work' was not deleted; in its way are: its jobs, 1 queued" in line
        assert "sqlqueue purge work" in line
    cli.run("purge", "work")
    dry = cli.run("delete-queue", "work", "--dry-run")
    assert dry.stdout == "queue work would be deleted. Nothing was changed (--dry-run)\n"
    assert cli.json("delete-queue", "work", "--dry-run")["deleted"] is False
    assert queue.settings("work").name == "work"
    deleted = cli.json("delete-queue", "work")
    assert (deleted["name"], deleted["bucket_count"], deleted["deleted"]) == ("work", 4, True)
    assert "there is no queue 'work'" in cli.refused(Code.UNKNOWN, "delete-queue", "work")
    queue.create_queue(spec)
    said = cli.run("delete-queue", "work").stdout
    assert said == "queue work is deleted; its jobs that have ended stay in the archive\n"
    assert queue.queues() == []
