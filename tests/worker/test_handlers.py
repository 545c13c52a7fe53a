"""Handlers by name."""

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Job, QueueSpec, SqlQueue, handles
from dagster_sqlqueue.consumer.batch_size import MOST_MEASURED
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.worker.handlers import load
from tests.cli.support import PROJECT, Cli
from tests.support import Work, states
from tests.worker import jobs
from tests.worker.conftest import Shop


class Letter(BaseModel):
    text: str


class Urgent(Work):
    by: str


spec = QueueSpec("work", Work)


def test_a_declared_handler_is_a_function_still() -> None:
    @handles(spec, lease_seconds=5, job_timeout_seconds=60, concurrency=2)
    def double(job: Job[Work]) -> Any:
        return job.payload.n * 2  # type: ignore[return-value]

    given = Job(
        *(None, "work", Work(n=4), 1, 1, 1, 0, None, None, None, None)  # type: ignore[arg-type]
    )
    assert double(given) == 8
    assert (double.spec, double.lease_seconds, double.job_timeout_seconds, double.concurrency) == (spec, 5, 60, 2)


def test_a_handler_is_found_by_name() -> None:
    found = load("tests.worker.jobs:handle")
    assert (found.spec, found.handler, found.concurrency) == (jobs.work, jobs.handle.handler, None)
    assert load("tests.worker.jobs:handle_async").concurrency == 3


def test_what_dagster_binds_is_taken_too(cli: Cli, queue: SqlQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT)
    assert load("docs.first_queue:send_email").spec.name == "emails"
    assert cli.run("create", "emails").exit_code == 0
    assert cli.run("enqueue", "emails", '{"to": "ada", "subject": "Hello"}').exit_code == 0
    done = cli.run("work", "docs.first_queue:send_email", "--drain", "--json")
    assert done.exit_code == 0, done.output
    assert queue.archived("emails", since_seconds=3_600) == {"succeeded": 1}


def test_the_command_needs_no_dagster() -> None:
    code = (
        "import sys, dagster_sqlqueue.cli; from dagster_sqlqueue.worker.handlers import load;"
        " load('deploy.handlers:send_email'); print([m for m in ('dagster', 'pyspark', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


BAD = {
    "tests.worker.jobs": "names no function; write it as package.module:handler",
    "tests.worker.jobs:": "names no function",
    ":handle": "names no function",
    "tests/worker/jobs.py:handle": "names no function",
    "no_such_module:handle": "there is no module 'no_such_module' here",
    "tests.no_such_module:handle": "there is no module 'tests.no_such_module' here",
    "tests.worker.jobs:nothing": "has no 'nothing'; its handlers are: handle, handle_other, pass_to_other, pass_to_work,",
    "tests.worker.support_that_is_not:x": "there is no module",
    "tests.cli.support:nothing": "has no 'nothing'; it has no handler",
    "tests.worker.jobs:plain": "is a function without a queue; decorate the function with @handles(spec)",
    "tests.worker.jobs:no_function": "is a QueueSpec without a queue",
    "tests.worker.jobs:number": "is a str without a queue",
    "tests.worker.jobs:by_batch": "takes all jobs of a claim at once",
}


@pytest.mark.parametrize("reference", list(BAD))
def test_a_name_that_leads_nowhere(reference: str, cli: Cli) -> None:
    assert BAD[reference] in cli.refused(2, "work", reference)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package", "failed with ModuleNotFoundError: No module named 'no_such_package' in "),
        ("\n1 / 0", "failed with ZeroDivisionError: division by zero in "),
        ("def", ", line 1)"),
        ("import sys\n\nsys.exit(0)", "failed with SystemExit: 0 in "),
    ],
)
def test_a_module_that_cannot_be_imported(
    text: str, message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash(text))}"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    said = cli.refused(2, "work", f"{name}:handle")
    assert message in said
    assert "importlib" not in said


def test_what_cannot_handle_jobs() -> None:
    async def later(jobs: Job[Letter]) -> None: ...

    def letters(job: Job[Letter]) -> None: ...

    def urgent(job: Job[Urgent]) -> None: ...

    async def anything(job: Any) -> None: ...

    @functools.wraps(anything)
    def passing_on(job: Any) -> Any:
        return anything(job)

    for handler, message in (
        (later, "takes Job[Letter], and the payloads of queue 'work' are Work"),
        ("send", "it must be a function of one job"),
        (passing_on, "is a plain wrapper around the async function 'anything'"),
        (letters, "takes Job[Letter], and the payloads of queue 'work' are Work"),
        (urgent, "takes Job[Urgent], and the payloads of queue 'work' are Work"),
    ):
        with pytest.raises(InvalidInput, match=message.replace("[", r"\[")):
            handles(spec)(handler)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"give it the queue: @handles\(QueueSpec\(…\)\)"):
        handles(later)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="concurrency is 0; it must be 1 to 1,000"):
        handles(spec, concurrency=0)
    with pytest.raises(InvalidInput, match="lease_seconds is -1; it must be positive"):
        handles(spec, lease_seconds=-1)
    with pytest.raises(InvalidInput, match="job_timeout_seconds is 0; it must be positive"):
        handles(spec, job_timeout_seconds=0)


def test_annotations_that_say_nothing_or_less_are_taken() -> None:
    def anything(job): ...  # type: ignore[no-untyped-def]

    def any_job(job: Job[Any]) -> None: ...

    def base(job: Job[BaseModel]) -> None: ...

    def unknown(job: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    class Callable:
        def __call__(self, job: Job[Work]) -> None: ...

    for handler in (anything, any_job, base, unknown, Callable(), lambda job: None):
        assert handles(spec)(handler).handler is handler  # type: ignore[arg-type]


def test_the_help_says_how_large_a_batch_becomes(cli: Cli) -> None:
    assert f"up to {MOST_MEASURED};" in " ".join(cli.run("work", "--help").stdout.replace("│", " ").split())


def test_what_the_command_refuses(cli: Cli) -> None:
    known, other, later = (f"tests.worker.jobs:{name}" for name in ("handle", "handle_other", "handle_async"))
    for arguments, message in (
        (["--batch", "0"], "batch_size is 0; it must be 1 to 10,000"),
        (["--mode", "eager"], "--mode is 'eager'; it must be leased or transactional"),
        (["--processes", "0"], "--processes is 0; it must be 1 to 1,000"),
        (["--processes", "1001"], "--processes is 1001; it must be 1 to 1,000"),
        (["--lease", "0"], "lease_seconds is 0.0; it must be positive"),
        (["--drain-timeout", "soon"], "--drain-timeout is 'soon'"),
        (["--grace", "none"], "--grace is 'none'"),
        (["--every", "1ms"], "--every is '1ms'; it must be at least 0.1 seconds"),
        ([known], "queue 'work' has two handlers here"),
        (["--concurrency", "1001"], "concurrency is 1001; it must be 1 to 1,000"),
        (
            ["--concurrency", "2", "--mode", "transactional"],
            "with concurrency 2 and in transactional mode, which works one",
        ),
        (
            ["--concurrency", "2", f"{other}=3"],
            "queue 'other' has the weight 3, and queue 'work' is to be worked off with",
        ),
    ):
        assert message in cli.refused(2, "work", known, *arguments)
    assert "with an async handler and in transactional mode" in cli.refused(2, "work", later, "--mode", "transactional")
    for weight in ("0", "-1", "much", "inf", "nan", ""):
        assert "it must be a positive number" in cli.refused(2, "work", f"{known}={weight}")
    assert "there is no queue 'other'" in cli.refused(5, "work", known, other, "--no-create")


def test_a_queue_that_is_not_there_is_made_as_the_handler_declares_it(cli: Cli, queue: SqlQueue) -> None:
    assert cli.run("work", "tests.worker.jobs:handle_other", "--drain").exit_code == 0
    assert queue.settings("other").lease_seconds == 300


def test_a_payload_that_does_not_fit_is_a_dead_letter_and_hurts_no_other_job(shop: Shop, queue: SqlQueue) -> None:
    queue.enqueue_many(QueueSpec("work", Letter), [Letter(text="x")])
    queue.enqueue(spec, Work(n=1))
    stats = [line for line in shop.drain() if line["event"] == "stats"][-1]
    assert (stats["succeeded"], stats["failed"]) == (1, 1)
    assert "payload does not fit Work: n: Field required" in queue.dead_letters("work")[0].error
    assert states(queue)[1] == "succeeded"
