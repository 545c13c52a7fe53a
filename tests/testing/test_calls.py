"""One call of a handler without a database, as a user's test makes it."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, field_serializer

from dagster_sqlqueue import (
    Cancel,
    Done,
    Hold,
    Job,
    NewJob,
    QueueSpec,
    Reject,
    Retry,
    Sensitive,
    handles,
    versioned,
)
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, WrongHandler
from dagster_sqlqueue.testing import JobForTest, call_handler, job_for_test
from tests.support import Work

SPEC = QueueSpec("work", Work, max_attempts=3)


class Login(BaseModel):
    password: Annotated[str, Sensitive()]
    at: datetime = Field(alias="when")


LOGINS = QueueSpec("logins", Login)


def test_a_job_says_what_one_that_was_claimed_says() -> None:
    id = UUID("01890000-0000-7000-8000-000000000001")
    new = NewJob(Work(n=1), id=id, priority=7, ordering_key="k", unique_key="u", tags=["a"], max_attempts=9)
    job = job_for_test(SPEC, new, attempt=9, error="the attempt before")
    assert (job.id, job.queue, job.payload, job.priority) == (id, "work", Work(n=1), 7)
    assert (job.ordering_key, job.unique_key, job.tags) == ("k", "u", ["a"])
    assert (job.attempt, job.lease_no, job.max_attempts, job.last_attempt) == (9, 9, 9, True)
    assert job.error == "the attempt before"
    assert job.connection is None
    assert not job.cancelled


def test_one_of_which_only_the_payload_is_said() -> None:
    job, other = job_for_test(SPEC, {"n": 1}), job_for_test(SPEC, Work(n=1))
    assert job.payload == other.payload == Work(n=1)
    assert job.id != other.id
    assert (job.attempt, job.max_attempts, job.error, job.tags, job.last_attempt) == (1, 3, None, [], False)
    assert job.created_at <= datetime.now(UTC)


def test_the_payload_is_what_json_makes_of_it() -> None:
    job = job_for_test(LOGINS, {"password": "s3cret", "when": "2026-01-31T10:00:00Z"})
    assert job.payload.at == datetime(2026, 1, 31, 10, tzinfo=UTC)


def test_a_model_that_does_not_survive_the_database_is_found() -> None:
    class Numbered(BaseModel):
        n: int

        @field_serializer("n")
        def written(self, n: int) -> str:
            return f"#{n}"

    with pytest.raises(
        InvalidPayload, match=r"a consumer could not read its payload back: .*n: .*Mend the serializers"
    ):
        job_for_test(QueueSpec("numbered", Numbered), Numbered(n=1))


def test_a_payload_of_an_older_version_is_upgraded_as_by_a_consumer() -> None:
    @versioned(2, upgrades={1: lambda old: {"total": old["amount"]}})
    class Order(BaseModel):
        total: int

    orders = QueueSpec("orders", Order)
    assert job_for_test(orders, Order(total=3)).payload == Order(total=3)
    assert job_for_test(orders, {"amount": 3, "$version": 1}).payload == Order(total=3)
    with pytest.raises(InvalidInput, match="version"):
        job_for_test(orders, {"total": 3, "$version": 9})


@pytest.mark.parametrize(
    ("job", "more", "said"),
    [
        ({"n": "x"}, {}, "n:"),
        (NewJob(Work(n=1), priority=10), {}, "priority is 10"),
        (Work(n=1), {"attempt": 4}, "attempt is 4; give 1 to 3"),
        (Work(n=1), {"error": 5}, "error is 5; give the text"),
        (Work(n=1), {"attempt": 0}, "attempt is 0"),
        (Work(n=1), {"attempt": True}, "attempt is True"),
    ],
)
def test_what_no_consumer_is_given_is_refused(job: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        job_for_test(SPEC, job, **more)
    assert said in str(refused.value)
    assert not str(refused.value).startswith("row")


def test_a_queue_by_its_name_is_refused() -> None:
    with pytest.raises(InvalidInput, match="give its declaration"):
        job_for_test("work", Work(n=1))  # type: ignore[arg-type]


def test_outcomes_are_those_that_are_written() -> None:
    answers: dict[int, Any] = {
        0: None,
        1: Done({"a": 1}),
        2: Retry("again", after=5),
        3: Hold("look"),
        4: Cancel(),
        5: Reject("no"),
    }

    def handle(job: Job[Work]) -> Any:
        return answers[job.payload.n]

    for n, answer in answers.items():
        assert call_handler(SPEC, handle, job_for_test(SPEC, Work(n=n))) == (Done() if answer is None else answer)


@pytest.mark.parametrize(
    ("given", "said"),
    [(7, "the handler returned a int"), (Done, "returned the class Done"), (Done(float("nan")), "NaN")],
    ids=["no outcome", "a class", "no JSON"],
)
def test_what_is_no_outcome_is_a_reject(given: Any, said: str) -> None:
    outcome = call_handler(SPEC, lambda job: given, job_for_test(SPEC, Work(n=1)))
    assert isinstance(outcome, Reject)
    assert said.lower() in outcome.reason.lower()


def test_an_exception_is_raised_where_it_was() -> None:
    def handle(job: Job[Work]) -> None:
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here") as raised:
        call_handler(SPEC, handle, job_for_test(SPEC, Work(n=1)))
    assert raised.traceback[-1].name == "handle"


def test_an_async_handler_is_awaited_and_in_a_loop_that_is_said() -> None:
    async def handle(job: Job[Work]) -> Done:
        await asyncio.sleep(0)
        return Done({"n": job.payload.n})

    job = job_for_test(SPEC, Work(n=3))
    assert call_handler(SPEC, handle, job) == Done({"n": 3})

    async def test() -> None:
        assert await asyncio.to_thread(call_handler, SPEC, handle, job) == Done({"n": 3})
        with pytest.raises(InvalidInput, match=r"await asyncio\.to_thread\(call_handler"):
            call_handler(SPEC, handle, job)

    asyncio.run(test())


def test_a_handler_of_a_batch_has_an_outcome_for_each_job() -> None:
    def handle(jobs: list[Job[Work]]) -> list[Done]:
        return [Done({"n": job.payload.n}) for job in jobs]

    jobs = [job_for_test(SPEC, Work(n=n)) for n in range(3)]
    assert call_handler(SPEC, handle, jobs) == [Done({"n": n}) for n in range(3)]
    assert call_handler(SPEC, lambda jobs: None, jobs) == [Done()] * 3
    too_few = call_handler(SPEC, lambda jobs: [Done()], jobs)
    assert [type(outcome) for outcome in too_few] == [Reject] * 3


def test_what_handles_made_is_called_too() -> None:
    @handles(SPEC)
    def send(job: Job[Work]) -> Done:
        return Done({"n": job.payload.n})

    assert call_handler(SPEC, send, job_for_test(SPEC, Work(n=1))) == Done({"n": 1})


def no_parameter() -> None: ...


def of_a_list(jobs: list[Job[Work]]) -> None: ...


def of_one(job: Job[Work]) -> None: ...


@handles(LOGINS)
def of_another_queue(job: Job[Login]) -> None: ...


JOB = job_for_test(SPEC, Work(n=1))


@pytest.mark.parametrize(
    ("handler", "job", "said"),
    [
        ("send", JOB, "must be a function of one job"),
        (no_parameter, JOB, "does not take"),
        (of_a_list, JOB, "takes a list of jobs by its annotation; give call_handler a list"),
        (of_one, [JOB], "takes one job by its annotation; give call_handler one, not a list"),
        (of_another_queue, JOB, "the handler is of queue 'logins' with payloads of Login, and queue 'work' has Work"),
        (of_one, Work(n=1), r"the job is a Work; make one with job_for_test\(spec, payload\)"),
        (of_one, None, "the job is a NoneType; make one"),
        (of_a_list, [Work(n=1)], "the job is a Work; make one"),
        (of_one, job_for_test(replace(SPEC, name="other"), Work(n=1)), "the job is of queue 'other'"),
    ],
)
def test_what_no_consumer_would_do_is_refused(handler: Any, job: Any, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        call_handler(SPEC, handler, job)


def test_a_coroutine_that_no_consumer_would_await_is_not_awaited_here() -> None:
    async def send(job: Job[Work]) -> Done:
        return Done()

    for handler, job in ((lambda job: send(job), JOB), (lambda jobs: send(jobs[0]), [JOB])):
        with pytest.raises(WrongHandler, match=r"nothing awaits it.* A consumer .* gives the jobs back") as caught:
            call_handler(SPEC, handler, job)  # type: ignore[call-overload]
        assert "were given back" not in str(caught.value), "there were none"


def test_jobs_are_made_by_the_function_alone() -> None:
    with pytest.raises(TypeError, match="job_for_test"):
        JobForTest(Work(n=1))


def test_a_generator_is_named() -> None:
    def handle(job: Job[Work]) -> Any:
        yield Done()

    with pytest.raises(WrongHandler, match="nothing iterates it"):
        call_handler(SPEC, handle, job_for_test(SPEC, Work(n=1)))


def test_progress_and_outcomes_are_as_they_would_be_stored() -> None:
    def handle(job: Job[Login]) -> Reject:
        job.progress(10)
        job.progress(50, f"logged in with {job.payload.password}")
        return Reject(f"{job.payload.password} is not the password")

    job = job_for_test(LOGINS, {"password": "s3cret", "when": "2026-01-31T10:00:00Z"})
    assert call_handler(LOGINS, handle, job) == Reject("*** is not the password")
    assert job.reports == [(10, None), (50, "logged in with ***")]


def test_a_request_to_cancel_is_seen() -> None:
    def handle(job: Job[Work]) -> Done | Cancel:
        return Cancel() if job.cancelled else Done()

    job = job_for_test(SPEC, Work(n=1))
    assert call_handler(SPEC, handle, job) == Done()
    job.request_cancellation()
    assert call_handler(SPEC, handle, job) == Cancel()


def test_the_connection_of_transactional_mode_is_the_one_that_is_given() -> None:
    connection = object()
    seen: list[Any] = []
    call_handler(SPEC, lambda job: seen.append(job.connection), job_for_test(SPEC, Work(n=1), connection=connection))
    assert seen == [connection]
