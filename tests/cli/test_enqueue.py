"""`enqueue`: from the command line and from standard input."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from dagster_sqlqueue import SqlQueue
from tests.cli.support import Cli
from tests.support import claim, value


def test_one_job(cli: Cli, queue: SqlQueue) -> None:
    done = cli.json("enqueue", "work", '{"order": 1, "deep": {"x": [null, true, 1.5]}}', "--priority", "7")
    assert (done["queue"], done["inserted"], done["duplicates"]) == ("work", 1, 0)
    (job,) = queue.peek("work")
    assert str(job.id) == done["id"]
    assert job.priority == 7
    assert json.loads(job.payload) == {"order": 1, "deep": {"x": [None, True, 1.5]}}


def test_all_options(cli: Cli, queue: SqlQueue) -> None:
    options = ["--run-at", "2037-01-31T08:00:00+02:00", "--unique-key", "u", "--ordering-key", "o"]
    assert "enqueued " in cli.run("enqueue", "work", "{}", *options).stdout
    (job,) = queue.peek("work")
    assert job.available_at == datetime(2037, 1, 31, 6, tzinfo=UTC)
    assert (job.unique_key, job.ordering_key) == ("u", "o")
    again = cli.run("enqueue", "work", "{}", "--unique-key", "u")
    assert again.exit_code == 0
    assert "enqueued 0 jobs on work; 1 left out: a live job has the same unique key, or the id is known" in again.stdout


@pytest.mark.parametrize("stdin", [None, '{"n": 1}\n{"n": 2}\n'])
def test_jobs_that_become_due_in_some_time_from_now(cli: Cli, queue: SqlQueue, stdin: str | None) -> None:
    def clock() -> datetime:
        found: datetime = value(queue, "SELECT clock_timestamp()")
        return found

    before = clock()
    done = cli.json("enqueue", "work", "-" if stdin else "{}", "--in", "10m", stdin=stdin)
    after = clock()
    jobs = queue.peek("work")
    assert len(jobs) == done["inserted"] == (2 if stdin else 1)
    for job in jobs:
        assert before <= job.available_at - timedelta(minutes=10) <= after


def test_in_some_time_is_by_the_clock_of_the_database(
    cli: Cli, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    far = datetime(2037, 1, 31, 8, tzinfo=UTC)
    run = queue.database.__class__.run
    monkeypatch.setattr(
        "dagster_sqlqueue.db.database.Database.run",
        lambda self, name, given: [(far,)] if name == "clock" else run(self, name, given),
    )
    cli.json("enqueue", "work", "{}", "--in", "1d")
    assert queue.peek("work")[0].available_at == far + timedelta(days=1)


def test_a_length_of_time_that_is_none_or_stands_beside_a_moment_is_refused(cli: Cli, queue: SqlQueue) -> None:
    moment = ["--run-at", "2037-01-31T08:00:00Z"]
    assert "give one of --in and --run-at" in cli.refused(2, "enqueue", "work", "{}", "--in", "5m", *moment)
    assert "--in is 'soon'; write a number of seconds" in cli.refused(2, "enqueue", "work", "{}", "--in", "soon")
    assert "--in is too long" in cli.refused(2, "enqueue", "work", "{}", "--in", "999999999d")
    assert queue.depth("work").live == 0


def test_what_may_be_said_about_a_job(cli: Cli, queue: SqlQueue) -> None:
    own = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
    options = ["--tag", "eu", "--tag", "big", "--timeout", "5min", "--max-attempts", "9", "--id", own]
    assert cli.json("enqueue", "work", "{}", *options)["id"] == own
    (job,) = queue.claim("work", buckets=range(4), limit=1, lease_seconds=300, worker="w")
    assert (str(job.id), set(job.tags), job.timeout_seconds, job.max_attempts) == (own, {"eu", "big"}, 300.0, 9)
    assert cli.json("enqueue", "work", "{}", *options)["duplicates"] == 1


def test_many_lines(cli: Cli, queue: SqlQueue) -> None:
    lines = "".join(f'{{"n": {n}}}\n' for n in range(4_500))
    assert cli.json("enqueue", "work", "-", stdin=lines) == {
        "queue": "work",
        "inserted": 4_500,
        "duplicates": 0,
        "replaced": 0,
        "rejected": [],
    }
    assert queue.depth("work").ready == 4_500


def test_a_job_in_place_of_one_that_waits(cli: Cli, queue: SqlQueue) -> None:
    first = cli.json("enqueue", "work", '{"n": 1}', "--unique-key", "u", "--replace")
    assert (first["inserted"], first["replaced"]) == (1, 0)
    second = cli.json("enqueue", "work", '{"n": 2}', "--unique-key", "u", "--replace")
    assert (second["inserted"], second["replaced"], second["id"]) == (0, 1, first["id"])
    assert "replacing its previous content" in cli.run("enqueue", "work", "{}", "--unique-key", "u", "--replace").stdout
    many = cli.run("enqueue", "work", "-", "--unique-key", "u", "--replace", stdin='{"n": 4}\n')
    assert many.stdout == "enqueued 0 jobs on work; 1 replaced queued jobs with the same unique keys\n"
    assert [json.loads(job.payload) for job in queue.peek("work")] == [{"n": 4}]


def test_a_key_that_is_held_until_the_claim(cli: Cli, queue: SqlQueue) -> None:
    options = ["--unique-key", "u", "--unique-until", "claim"]
    first = cli.json("enqueue", "work", "{}", *options)
    assert "u, until it is claimed" in cli.run("show", first["id"]).stdout
    assert cli.json("enqueue", "work", "{}", *options)["duplicates"] == 1
    claim(queue)
    assert cli.json("enqueue", "work", "{}", *options)["inserted"] == 1


@pytest.mark.parametrize("option", ["--replace", "--merge"])
def test_what_is_done_by_the_unique_key_needs_one(cli: Cli, queue: SqlQueue, option: str) -> None:
    assert f"{option} is for a job with the unique key" in cli.refused(2, "enqueue", "work", "{}", option)
    assert queue.depth("work").live == 0


def test_a_region_without_buckets_is_named(cli: Cli, queue: SqlQueue) -> None:
    assert "region is 'mars', which has no bucket" in cli.refused(2, "enqueue", "work", "{}", "--region", "mars")
    assert queue.depth("work").live == 0


def test_bad_lines_can_be_left_out(cli: Cli, queue: SqlQueue) -> None:
    lines = '{"n": 1}\n\nnonsense\n{"n": 2}\n{"n": "\\u0000"}\n[1]\n{"n": 3}\n'
    done = cli.run("enqueue", "work", "-", "--skip-bad", "--json", stdin=lines)
    assert done.exit_code == 6
    found = json.loads(done.stdout)
    assert found["inserted"] == 3
    assert [bad["line"] for bad in found["rejected"]] == [3, 5, 6]
    assert "NUL" in found["rejected"][1]["error"]
    assert {json.loads(job.payload)["n"] for job in queue.peek("work")} == {1, 2, 3}
    shown = cli.run("enqueue", "work", "-", "--skip-bad", stdin=lines)
    assert "enqueued 3 jobs on work; 3 refused\nline 3: is not a JSON object" in shown.stdout
    assert cli.refused(2, "enqueue", "work", "{}", "--skip-bad").startswith("--skip-bad applies to the lines")


def test_standard_input_is_read_when_no_payload_is_given(cli: Cli, queue: SqlQueue) -> None:
    stdin = '\ufeff{"a": "é"}\r\n\n  \n{"a": 2}'.encode()
    assert "enqueued 2 jobs on work" in cli.run("enqueue", "work", stdin=stdin).stdout
    assert {json.loads(job.payload)["a"] for job in queue.peek("work")} == {"é", 2}


def test_bad_payloads_enqueue_nothing(cli: Cli, queue: SqlQueue) -> None:
    for payload, said in (
        ("[1]", "Input should be an object"),
        ('"text"', "Input should be an object"),
        ("{", "Invalid JSON"),
        ("", "Invalid JSON"),
        ('{"a": 1} {"b": 2}', "Invalid JSON"),
        ('{"a": NaN}', "NaN"),
        ('{"a": {"b": [1e400]}}', "beyond the range"),
        ('{"a": "\\u0000"}', "NUL"),
        ('{"a": "\\ud800"}', "Invalid JSON"),
        ('{"a":' * 5_000 + "1" + "}" * 5_000, "recursion limit"),
        ('{"a": "' + "x" * 1_000_001 + '"}', "limit is 1,000,000"),
        ("'; DROP TABLE job; --", "Invalid JSON"),
    ):
        alone = cli.refused(2, "enqueue", "work", "--", payload)
        assert said in alone
        assert not alone.startswith("row ")
        if payload:
            many = cli.refused(2, "enqueue", "work", "-", stdin=f'{{"a": 1}}\n\n{payload}\n{{"a": 2}}\n')
            assert said in many
            assert many.startswith("line 3")
            assert many.endswith("nothing was enqueued")
    assert queue.depth("work").live == 0


def test_bytes_that_are_no_text(cli: Cli, queue: SqlQueue) -> None:
    assert cli.refused(2, "enqueue", "work", "-", stdin=b'{"a": 1}\n{"a": "\xff\xfe"}\n').startswith("line 2 ")
    done = cli.process("enqueue", "work", b'{"a": "\xff"}'.decode(errors="surrogateescape"))
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: the payload is not a JSON object")
    assert queue.depth("work").live == 0


def test_a_line_without_end_is_refused(cli: Cli) -> None:
    assert "more than" in cli.refused(2, "enqueue", "work", "-", stdin=b"x" * 8_000_001)


def test_nothing_on_standard_input(cli: Cli) -> None:
    assert "contained no payload" in cli.refused(2, "enqueue", "work", "-", stdin="\n\n")


def test_bad_options(cli: Cli, queue: SqlQueue) -> None:
    for options, said in (
        (["--priority", "10"], "priority is 10"),
        (["--priority", "high"], "--priority is 'high'; it must be a whole number"),
        (["--run-at", "tomorrow"], "'tomorrow' is not a time"),
        (["--run-at", "2026-01-31T08:00:00"], "has no time zone"),
        (["--run-at", "9999-12-31T23:59:59-12:00"], "years 1 to 9999"),
        (["--unique-key", ""], "unique_key must"),
        (["--unique-key", "u", "--unique-until", "ever"], "must be 'end' or 'claim'"),
        (["--unique-until", "claim"], "--unique-key, which is not given"),
        (["--ordering-key", "x" * 1_001], "ordering_key must"),
        (["--tag", ""], "tag"),
        (["--timeout", "soon"], "--timeout is 'soon'"),
        (["--timeout", "0"], "timeout_seconds"),
        (["--max-attempts", "0"], "max_attempts"),
        (["--id", "1"], "--id '1' is not a job's id"),
        (["--surprise"], "No such option"),
        (["extra"], "unexpected extra argument"),
    ):
        assert said in cli.refused(2, "enqueue", "work", "{}", *options)
    assert queue.depth("work").live == 0


def test_a_unique_key_goes_with_one_job_only(cli: Cli, queue: SqlQueue) -> None:
    for option in (["--unique-key", "u"], ["--id", "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"]):
        said = cli.refused(2, "enqueue", "work", "-", *option, stdin="{}\n\n{}\n")
        assert said.startswith(f"{option[0]} names one job, and line 3 ")
    assert queue.depth("work").live == 0


def test_an_unknown_queue(cli: Cli) -> None:
    for arguments in (["enqueue", "nosuch", "{}"], ["peek", "nosuch"], ["stats", "nosuch"], ["dead", "nosuch"]):
        assert "there is no queue 'nosuch'" in cli.refused(5, *arguments)
    assert "there is no queue" in cli.refused(5, "enqueue", "nosuch", "-", stdin="{}")
    assert "is not usable" in cli.refused(2, "peek", "no such")
