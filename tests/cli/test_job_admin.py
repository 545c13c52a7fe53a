"""`retry`, `cancel`, `hold`, `release`, `reschedule`, `reprioritise`, and which jobs they are about."""

from collections.abc import Iterator
from typing import Any

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, Selection, SqlQueue
from dagster_sqlqueue.model.job import ArchiveState, ClaimedJob
from dagster_sqlqueue.queue import Ending
from tests.cli.support import Cli
from tests.support import Work, claim, value

_NOBODY = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


def _put(queue: SqlQueue, spec: QueueSpec[Work], *tags: str, **more: Any) -> list[str]:
    """A job for each tag, numbered from 0."""
    return [str(queue.enqueue(spec, NewJob(Work(n=n), tags=[tag], **more))) for n, tag in enumerate(tags)]


def _claimed(queue: SqlQueue) -> dict[str, ClaimedJob]:
    return {str(job.id): job for job in claim(queue)}


def _fail(queue: SqlQueue, error: str = "Refused: no") -> None:
    queue.finish([Ending(job, ArchiveState.FAILED, error=error) for job in claim(queue)])


def _states(cli: Cli, *ids: str) -> list[str]:
    return [cli.json("show", id_)["state"] for id_ in ids]


def _everything(queue: SqlQueue) -> Any:
    return value(queue, "SELECT jsonb_agg(to_jsonb(j) ORDER BY j.id) FROM {s}.job_all AS j")


def test_retry(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    one, two, three = _put(queue, spec, "a", "b", "b")
    _fail(queue)
    assert cli.json("retry", "work", one) == {"queue": "work", "changed": [one], "requested": [], "skipped": []}
    assert _states(cli, one, two, three) == ["queued", "failed", "failed"]
    assert cli.run("retry", "work", "--tag", "b").stdout == "queue work: put back 2 jobs\n"
    assert {job.attempt for job in claim(queue)} == {1}
    assert cli.run("retry", "work", "--all").stdout == "queue work: put back 0 jobs\n"


def test_retry_of_some(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    _put(queue, spec, "a")
    _fail(queue, "Timeout: slow")
    _put(queue, spec, *"abc")
    _fail(queue)
    assert len(cli.json("retry", "work", "--error", "Timeout")["changed"]) == 1
    assert len(cli.json("retry", "work", "--all", "--limit", "2")["changed"]) == 2
    assert len(cli.json("retry", "work", "--all")["changed"]) == 1
    cli.run("cancel", "work", "--all")
    assert cli.json("retry", "work", "--all")["changed"] == []
    assert len(cli.json("retry", "work", "--state", "cancelled")["changed"]) == 4


def test_retry_says_what_stays_and_why(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (old,) = _put(queue, spec, "a", unique_key="u")
    _fail(queue)
    (new,) = _put(queue, spec, "a", unique_key="u")
    some = cli.run("retry", "work", "--all")
    assert some.exit_code == 6
    assert "put back 0 jobs; left 1 job unchanged" in some.stdout
    assert "unique key" in some.stdout
    named = cli.run("retry", "work", new, _NOBODY, "--json")
    assert named.exit_code == 6
    assert f'"id": "{new}"' in named.stdout
    assert f'"id": "{_NOBODY}"' in named.stdout
    assert _states(cli, old) == ["failed"]


def test_cancel(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    running, *_ = _put(queue, spec, "a")
    jobs = _claimed(queue)
    waiting, other = _put(queue, spec, "a", "b")
    done = cli.run("cancel", "work", "--tag", "a", "--reason", "not wanted")
    assert (done.exit_code, done.stdout) == (0, "queue work: cancelled 1 job; asked 1 running job to end\n")
    assert _states(cli, running, waiting, other) == ["running", "cancelled", "queued"]
    assert cli.json("show", waiting)["error"] == "not wanted"
    assert "asked to end" in cli.run("show", running).stdout
    assert queue.heartbeat([jobs[running]], lease_seconds=30).cancel_requested == {jobs[running].id}
    again = cli.json("cancel", "work", other)
    assert again["changed"] == [other]
    ended = cli.run("cancel", "work", waiting)
    assert ended.exit_code == 6
    assert "cancelled" in ended.stdout


def test_hold_and_release(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    one, two = _put(queue, spec, "a", "b")
    assert cli.run("hold", "work", one, "--reason", "asks to wait").stdout == "queue work: held 1 job\n"
    assert _states(cli, one, two) == ["held", "queued"]
    assert cli.json("show", one)["error"] == "asks to wait"
    assert "when it is released" in cli.run("list", "work", "--state", "held").stdout
    assert cli.json("release", "work", "--all")["changed"] == [one]
    assert cli.run("release", "work", one).exit_code == 6
    assert len(claim(queue)) == 2


def test_delay(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    one, two = _put(queue, spec, "a", "b")
    assert cli.json("reschedule", "work", one, "--until", "2037-01-31T08:00:00Z")["changed"] == [one]
    assert cli.json("show", one)["available_at"] == "2037-01-31T08:00:00+00:00"
    assert cli.run("reschedule", "work", "--tag", "b", "--for", "2h").stdout == "queue work: rescheduled 1 job\n"
    assert claim(queue) == []
    assert set(cli.json("reschedule", "work", "--all", "--for", "0")["changed"]) == {one, two}
    assert len(claim(queue)) == 2


def test_reprioritise(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    one, two = _put(queue, spec, "a", "b")
    done = cli.run("reprioritise", "work", "--payload", '{"n": 1}', "--priority", "9")
    assert done.stdout == "queue work: set to priority 9 1 job\n"
    assert [job["priority"] for job in (cli.json("show", one), cli.json("show", two))] == [0, 9]


def test_delete_and_purge(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    failed, *_ = _put(queue, spec, "a")
    _fail(queue)
    running, *_ = _put(queue, spec, "a")
    _claimed(queue)
    one, two, three = _put(queue, spec, "a", "b", "c")
    done = cli.run("delete", failed, one, running)
    assert (done.exit_code, done.stdout.splitlines()[0]) == (6, "queue work: deleted 2 jobs; left 1 job unchanged")
    assert "it is running" in done.stdout
    assert cli.run("show", failed).exit_code != 0
    assert cli.json("delete", "work", "--tag", "b")["changed"] == [two]
    assert cli.run("delete", "work", "--state", "succeeded").stdout == "queue work: deleted 0 jobs\n"
    assert cli.run("purge", "work").stdout == "queue work: deleted 1 job\n"
    assert cli.run("show", three).exit_code != 0
    assert _states(cli, running) == ["running"]
    refused = cli.run("delete", "work")
    assert "no jobs are selected: give ids, a condition, or --all" in refused.stderr
    assert "delete applies to jobs that are queued" in cli.run("delete", "work", "--state", "running").stderr


@pytest.mark.parametrize(
    ("arguments", "would"),
    [
        (["retry", "--all"], (2, 0)),
        (["retry", "--all", "--limit", "1"], (1, 0)),
        (["retry", "--tag", "a"], (1, 0)),
        (["retry", "--state", "cancelled"], (1, 0)),
        (["cancel", "--all"], (4, 1)),
        (["cancel", "--state", "running"], (0, 1)),
        (["cancel", "--state", "held"], (1, 0)),
        (["hold", "--all"], (3, 0)),
        (["release", "--all"], (1, 0)),
        (["reschedule", "--all", "--for", "5min"], (3, 0)),
        (["reprioritise", "--all", "--priority", "3"], (5, 0)),
        (["delete", "--all"], (7, 0)),
        (["delete", "--state", "failed"], (2, 0)),
        (["delete", "--tag", "a"], (1, 0)),
        (["purge"], (4, 0)),
    ],
)
def test_dry_run_names_the_jobs_and_changes_nothing(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], arguments: list[str], would: tuple[int, int]
) -> None:
    _put(queue, spec, "a", "b")
    _fail(queue)
    cli.run("cancel", "work", *_put(queue, spec, "c"))
    _put(queue, spec, "d")
    claim(queue)
    cli.run("hold", "work", *_put(queue, spec, "e"))
    _put(queue, spec, *"fgh")
    before = _everything(queue)
    verb, *options = arguments
    preview = cli.json(verb, "work", *options, "--dry-run")
    assert (len(preview["changed"]), len(preview["requested"])) == would
    assert (preview["dry_run"], preview["complete"], preview["skipped"]) == (True, True, [])
    assert "Nothing was changed (--dry-run)" in cli.run(verb, "work", *options, "--dry-run").stdout
    assert _everything(queue) == before
    done = cli.json(verb, "work", *options)
    assert set(done["changed"]) == set(preview["changed"])
    assert done["requested"] == preview["requested"]


def test_dry_run_of_ids_says_which_would_be_left(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (dead,) = _put(queue, spec, "a")
    _fail(queue)
    (live,) = _put(queue, spec, "a")
    preview = cli.run("cancel", "work", dead, live, _NOBODY, "--dry-run")
    assert preview.exit_code == 6
    assert "1 job would be cancelled; 2 jobs left unchanged" in preview.stdout
    assert "it is failed" in preview.stdout
    assert "queue work has no such job" in preview.stdout
    assert _states(cli, dead, live) == ["failed", "queued"]


def test_many_jobs(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.enqueue_many(spec, [Work(n=n) for n in range(2_500)])
    preview = cli.run("cancel", "work", "--all", "--dry-run").stdout
    assert "queue work: 2,500 jobs would be cancelled. Nothing was changed (--dry-run)" in preview
    assert "(the first 20 of 2,500)" in preview
    assert cli.run("cancel", "work", "--all").stdout == "queue work: cancelled 2,500 jobs\n"
    assert cli.run("retry", "work", "--state", "cancelled").stdout == "queue work: put back 2,500 jobs\n"
    assert queue.depth("work").ready == 2_500


def test_no_selection_is_no_wish_for_everything(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    _put(queue, spec, "a")
    before = _everything(queue)
    for verb in ("retry", "cancel", "hold", "release", "reschedule", "reprioritise", "delete"):
        _refuses_vague_selections(cli, verb)
    assert _everything(queue) == before


def _refuses_vague_selections(cli: Cli, verb: str) -> None:
    own = {"reschedule": ["--for", "5"], "reprioritise": ["--priority", "5"]}.get(verb, [])
    for selection, said in (
        ([], "no jobs are selected: give ids, a condition, or --all"),
        (["--all", "--tag", "a"], "--all and --tag cannot be combined"),
        (["--all", "--error", ""], "--all and --error cannot be combined"),
        ([_NOBODY, "--all"], "ids and --all cannot be combined"),
        ([_NOBODY, "--payload", "{}"], "ids and --payload cannot be combined"),
        (["17"], "the job '17' is not a job's id"),
        (["--payload", "no"], "is not JSON"),
        (["--ordering-key", ""], "--ordering-key is empty"),
        (["--tag", ""], "not empty"),
        (["--before", "noon"], "--before 'noon' is not a time"),
    ):
        assert said in cli.refused(2, verb, "work", *selection, *own)
    assert "there is no queue 'nosuch'" in cli.refused(5, verb, "nosuch", "--all", *own)
    assert "there is no queue 'nosuch'" in cli.refused(5, verb, "nosuch", "--all", "--dry-run", *own)


def test_what_is_refused(cli: Cli) -> None:
    for verb, options, said in (
        ("retry", ["--state", "queued"], "--state is 'queued'; retry applies to jobs that are failed or cancelled"),
        ("retry", ["--all", "--limit", "0"], "--limit is 0"),
        ("cancel", ["--state", "failed"], "cancel applies to jobs that are queued or running or held"),
        ("reschedule", ["--all"], "give one of --until and --for"),
        ("reschedule", ["--all", "--for", "5", "--until", "2037-01-31T08:00:00Z"], "give one of --until and --for"),
        ("reschedule", ["--all", "--for", "99999d"], "hundred years"),
        ("reschedule", ["--all", "--until", "2037-01-31T08:00:00"], "has no time zone"),
        ("reprioritise", ["--all"], "--priority is missing"),
        ("reprioritise", ["--all", "--priority", "10"], "must be 0 to 9"),
    ):
        assert said in cli.refused(2, verb, "work", *options)


_ALL = {
    "retry": "all failed jobs of the queue; for cancelled ones, use --state cancelled instead",
    "cancel": "all live jobs of the queue: queued and held ones are cancelled at once, running ones are asked to end",
    "hold": "all queued jobs of the queue, due or not; running ones continue",
    "release": "all held jobs of the queue",
    "reschedule": "all queued jobs of the queue, due or not; running and held ones are not changed",
    "reprioritise": "all live jobs of the queue: queued, running and held",
    "delete": "all jobs of the queue that are not running: waiting ones, and the archive. see also purge",
    "people hand-over": "all queued jobs of the queue, due or not; running ones continue",
}


@pytest.mark.parametrize(("command", "says"), _ALL.items(), ids=_ALL)
def test_the_help_says_which_jobs_all_of_them_are(cli: Cli, command: str, says: str) -> None:
    shown = Cli({**cli.environment, "TERMINAL_WIDTH": "300", "COLUMNS": "300"}).run(*command.split(), "--help").stdout
    assert says in " ".join(shown.split()).lower()


@pytest.mark.parametrize(("command", "says"), _ALL.items(), ids=_ALL)
def test_the_error_without_a_selection_says_the_same(cli: Cli, queue: SqlQueue, command: str, says: str) -> None:
    signed = ["--by", "boss", "--reason", "hard"] if command == "people hand-over" else []
    assert f"or --all ({says})" in cli.refused(2, *command.split(), "work", *signed).lower()


_OWN = {"reschedule": ["--for", "2h"], "reprioritise": ["--priority", "9"]}


@pytest.fixture
def other(queue: SqlQueue) -> Iterator[QueueSpec[Work]]:
    """Another queue of the schema."""
    spec = QueueSpec("other", Work, bucket_count=2)
    queue.create_queue(spec)
    yield spec
    queue.cancel("other", Selection(all=True))


@pytest.mark.parametrize("verb", ["retry", "cancel", "hold", "release", "reschedule", "reprioritise", "delete"])
def test_ids_need_no_queue(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], verb: str) -> None:
    jobs = _put(queue, spec, *"ab")
    if verb == "retry":
        _fail(queue)
    if verb == "release":
        cli.run("hold", "work", "--all")
    before = _everything(queue)
    preview = cli.json(verb, *jobs, *_OWN.get(verb, []), "--dry-run")
    assert (preview["queue"], set(preview["changed"]), preview["dry_run"]) == ("work", set(jobs), True)
    assert _everything(queue) == before
    done = cli.json(verb, *jobs, *_OWN.get(verb, []))
    assert (done["queue"], set(done["changed"]), done["skipped"]) == ("work", set(jobs), [])
    assert _everything(queue) != before


def test_ids_that_need_no_queue_are_said_to_be_of_theirs(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (job,) = _put(queue, spec, "a")
    assert cli.run("hold", job).stdout == "queue work: held 1 job\n"
    ended = cli.run("cancel", job, "--dry-run")
    assert ended.stdout.startswith("queue work: 1 job would be cancelled. Nothing was changed (--dry-run)")
    again = cli.run("hold", job)
    assert (again.exit_code, "left 1 job unchanged" in again.stdout) == (6, True)


@pytest.mark.parametrize("verb", ["retry", "cancel", "hold", "release", "reschedule", "reprioritise"])
def test_ids_of_two_queues_are_refused_by_both_names(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], other: QueueSpec[Work], verb: str
) -> None:
    here, there = _put(queue, spec, *"ab"), str(queue.enqueue(other, Work(n=1)))
    before = _everything(queue)
    said = cli.refused(2, verb, *here, there, *_OWN.get(verb, []))
    assert f"the jobs belong to several queues: {here[0]} to work, {there} to other" in said
    assert "nothing was changed" in said
    assert _everything(queue) == before


def test_ids_that_nobody_knows_are_an_error(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    (job,) = _put(queue, spec, "a")
    before = _everything(queue)
    for words in ([_NOBODY], [job, _NOBODY], [_NOBODY, job], [_NOBODY, "--dry-run"]):
        said = cli.refused(5, "cancel", *words)
        assert f"there is no job {_NOBODY}" in said
    assert "in front of the ids" in cli.refused(5, "cancel", job, _NOBODY)
    assert _everything(queue) == before


def test_what_is_neither_a_queue_nor_an_id(cli: Cli) -> None:
    assert "no queue is named" in cli.refused(2, "cancel", "--all")
    assert "no jobs are selected" in cli.refused(2, "cancel")
    assert "the job '0199a1b2-c3d4' is not a job's id" in cli.refused(2, "cancel", "0199a1b2-c3d4")
    assert "ids and --all cannot be combined" in cli.refused(2, "cancel", _NOBODY, "--all")
    assert "the job 'work' is not a job's id" in cli.refused(2, "cancel", _NOBODY, "work")


def test_the_help_says_that_ids_are_of_one_queue(cli: Cli) -> None:
    shown = Cli({**cli.environment, "TERMINAL_WIDTH": "300", "COLUMNS": "300"}).run("cancel", "--help").stdout
    assert "all of one queue, because the output is about one queue" in " ".join(shown.split())
