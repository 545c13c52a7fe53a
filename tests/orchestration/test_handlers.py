"""What a handler may take of a run: one job or all jobs of a claim, Dagster's context and resources; and nothing else."""

import functools
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, QueueSpec, Retry, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import QueueConsumer, SqlQueueResource, build_drain_op, queue_consumer
from dagster_sqlqueue.orchestration.handlers import shape_of_handler
from tests.orchestration.support import WORK, Deployment
from tests.support import Work, rows


class Gateway(dg.ConfigurableResource[Any]):
    """What handlers of these tests send by."""

    prefix: str

    def send(self, n: int) -> str:
        return f"{self.prefix}{n}"


class Client:
    """What is no resource by its class."""

    def send(self, n: int) -> str:
        return f"client {n}"


class Other(BaseModel):
    text: str


NO_JOB: Any = None


def work_off(deployment: Deployment, consumer: QueueConsumer[Any], **resources: Any) -> dg.ExecuteInProcessResult:
    config = {"ops": {consumer.op.name: {"config": {"linger_seconds": 0}}}}
    resources = {"sqlqueue": deployment.resource, **resources}
    return consumer.job.execute_in_process(run_config=config, resources=resources, instance=deployment.instance)


def results(queue: SqlQueue) -> list[Any]:
    return sorted(row[0] for row in rows(queue, "SELECT result->>'sent' FROM {s}.job_archive"))


def consumers() -> dict[str, QueueConsumer[Any]]:
    @queue_consumer(WORK, name="job")
    def job(job: Job[Work], context: dg.OpExecutionContext, gateway: Gateway) -> Done:
        context.log.info("sending %d in %s", job.payload.n, context.run_id)
        return Done({"sent": gateway.send(job.payload.n)})

    @queue_consumer(WORK, name="first")
    def first(context: Any, job: Job[Work], gateway: Gateway) -> Done:
        context.log.info("sending %d in %s", job.payload.n, context.run_id)
        return Done({"sent": gateway.send(job.payload.n)})

    @queue_consumer(WORK, name="positional")
    def positional(context: dg.OpExecutionContext, job: Job[Work], /, *, gateway: Gateway) -> Done:
        context.log.info("sending %d in %s", job.payload.n, context.run_id)
        return Done({"sent": gateway.send(job.payload.n)})

    @queue_consumer(WORK, name="asynchronous")
    async def asynchronous(its: Job[Work], gateway: Gateway, run: dg.OpExecutionContext) -> Done:
        run.log.info("sending %d in %s", its.payload.n, run.run_id)
        return Done({"sent": gateway.send(its.payload.n)})

    @queue_consumer(WORK, name="batch")
    def batch(context: dg.OpExecutionContext, jobs: list[Job[Work]], gateway: Gateway) -> list[Done]:
        context.log.info("sending %d in %s", jobs[0].payload.n, context.run_id)
        return [Done({"sent": gateway.send(job.payload.n)}) for job in jobs]

    @queue_consumer(WORK, name="asynchronous_batch")
    async def asynchronous_batch(jobs: Sequence[Job[Work]], context: dg.OpExecutionContext, gateway: Gateway) -> Any:
        context.log.info("sending %d in %s", jobs[0].payload.n, context.run_id)
        return [Done({"sent": gateway.send(job.payload.n)}) for job in jobs]

    @queue_consumer(WORK, name="transactional", transactional=True)
    def transactional(job: Job[Work], context: dg.OpExecutionContext, gateway: Gateway) -> Done:
        context.log.info("sending %d in %s", job.payload.n, context.run_id)
        return Done({"sent": gateway.send(job.payload.n)})

    made = (job, first, positional, asynchronous, batch, asynchronous_batch, transactional)
    return {consumer.job.name: consumer for consumer in made}


@pytest.mark.parametrize("shape", list(consumers()))
def test_handlers_take_the_run_s_context_and_resources(queue: SqlQueue, deployment: Deployment, shape: str) -> None:
    deployment.enqueue_many(3)
    result = work_off(deployment, consumers()[shape], gateway=Gateway(prefix="mail "))
    assert results(queue) == ["mail 0", "mail 1", "mail 2"]
    said = {log.user_message for log in deployment.instance.all_logs(result.run_id)}
    assert said & {f"sending {n} in {result.run_id}" for n in range(3)}


def by_other_ways() -> Iterator[tuple[Any, dict[str, Any]]]:
    def by_name(*, job: Job[Work]) -> Done:
        return Done({"sent": f"x{job.payload.n}"})

    yield by_name, {}
    yield by_name, {"transactional": True}
    yield by_name, {"concurrency": 2}

    def pay(bank: str, job: Job[Work]) -> Done:
        return Done({"sent": f"{bank}{job.payload.n}"})

    yield functools.partial(pay, bank="x"), {}
    yield functools.partial(pay, "x"), {}

    def bare_pay(bank, job):  # type: ignore[no-untyped-def]
        return pay(bank, job)

    yield functools.partial(bare_pay, bank="x"), {}

    def later_one(bank: str = "x", job: Job[Work] = NO_JOB) -> Done:
        return pay(bank, job)

    yield later_one, {}

    def positional(bank: str = "x", job: Job[Work] = NO_JOB, /, more: int = 1, *, most: int = 2) -> Done:
        assert (more, most) == (1, 2)
        return pay(bank, job)

    yield positional, {}

    def positional_before(bank: str = "x", /, job: Job[Work] = NO_JOB) -> Done:
        return pay(bank, job)

    yield positional_before, {}

    def after_any(*banks: str, job: Job[Work]) -> Done:
        return pay("x", job)

    yield after_any, {}

    async def asynchronous(bank: str = "x", *, job: Job[Work]) -> Done:
        return pay(bank, job)

    yield asynchronous, {}
    yield asynchronous, {"concurrency": 2}

    def batch(bank: str = "x", *, jobs: list[Job[Work]]) -> list[Done]:
        return [pay(bank, job) for job in jobs]

    yield batch, {}

    async def asynchronous_batch(bank: str, jobs: list[Job[Work]]) -> list[Done]:
        return [pay(bank, job) for job in jobs]

    yield functools.partial(asynchronous_batch, bank="x"), {}

    class Called:
        def __call__(self, bank: str = "x", *, job: Job[Work]) -> Done:
            return pay(bank, job)

    yield Called(), {}


@pytest.mark.parametrize(("handler", "more"), list(by_other_ways()))
def test_a_job_reaches_its_parameter_wherever_that_is(
    queue: SqlQueue, deployment: Deployment, handler: Any, more: dict[str, Any]
) -> None:
    deployment.enqueue_many(3)
    work_off(deployment, queue_consumer(WORK, name="ways", **more)(handler))
    assert results(queue) == ["x0", "x1", "x2"]


def test_a_function_of_the_job_first_keeps_its_defaults() -> None:
    def plain(job: Job[Work], bank: str = "x") -> Any:
        return job, bank

    context: Any = None
    assert shape_of_handler(plain, WORK).bound(context)("job") == ("job", "x")


@pytest.mark.parametrize("shape", ["plain", "context", "asynchronous", "transactional", "batch"])
def test_dagster_s_exceptions_are_outcomes(queue: SqlQueue, deployment: Deployment, shape: str) -> None:
    def judge(job: Job[Work]) -> None:
        if job.payload.n == 0:
            raise dg.Failure("no use", allow_retries=False)
        if job.payload.n == 1:
            raise dg.RetryRequested(seconds_to_wait=3600)
        if job.payload.n == 2:
            raise dg.RetryRequested(seconds_to_wait=3600) from TimeoutError("no answer")
        raise dg.Failure("not yet")

    def with_context(context: dg.OpExecutionContext, job: Job[Work]) -> None:
        judge(job)

    async def asynchronous(job: Job[Work]) -> None:
        judge(job)

    def batch(jobs: list[Job[Work]]) -> None:
        judge(jobs[0])

    handler = {"context": with_context, "asynchronous": asynchronous, "batch": batch}.get(shape, judge)
    consumer = queue_consumer(WORK, transactional=shape == "transactional")(handler)
    deployment.enqueue_many(4)
    assert deployment.drain(consumer, batch_size=1).success
    letters = {json.loads(letter.payload)["n"]: letter for letter in queue.dead_letters("work")}
    assert {n: letter.attempt for n, letter in letters.items()} == {0: 1, 3: 3}
    assert (letters[0].error or "").startswith("Failure: no use")
    waiting = rows(
        queue,
        "SELECT split_part(error, E'\\n', 1) FROM {s}.job WHERE available_at > now() + interval '50 minutes'"
        " ORDER BY (payload ->> 'n')::int",
    )
    assert waiting == [("the handler asked for another attempt",), ("TimeoutError: no answer",)]


def test_a_resource_that_is_any_object(queue: SqlQueue, deployment: Deployment) -> None:
    @queue_consumer(WORK)
    def send(job: Job[Work], client: dg.ResourceParam[Client], sqlqueue: SqlQueueResource) -> Done:
        assert sqlqueue.queue.depth("work").running == 1
        return Done({"sent": client.send(job.payload.n)})

    deployment.enqueue_many(1)
    work_off(deployment, send, client=Client())
    assert results(queue) == ["client 0"]


def test_a_resource_that_is_missing_is_reported_when_the_code_is_loaded() -> None:
    job = consumers()["job"].job
    defs = dg.Definitions(jobs=[job], resources={"sqlqueue": SqlQueueResource(url="postgresql://x/y")})
    with pytest.raises(dg.DagsterInvalidDefinitionError, match="gateway"):
        dg.Definitions.validate_loadable(defs)


def test_a_consumer_is_called_like_its_function() -> None:
    job = queue_consumer(WORK)(lambda job, context: (job, context))
    assert job("job", context="context") == ("job", "context")


def test_annotations_decide_what_is_passed() -> None:
    def one(job: "Job[Work]") -> None: ...
    def many(jobs: "list[Job[Work]]") -> None: ...
    def bare(jobs: list) -> None: ...  # type: ignore[type-arg]
    def any_of_them(job: Job[Any]) -> None: ...
    def base(job: Job[BaseModel], *, retries: int = 3) -> None: ...

    class Called:
        def __call__(self, jobs: list[Job[Work]]) -> None: ...

    @functools.wraps(many)
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    batches = {
        handler: queue_consumer(WORK)(handler).batch
        for handler in (one, many, bare, any_of_them, base, wrapped, functools.partial(many))
    }
    assert list(batches.values()) == [False, True, True, False, False, True, True]
    assert queue_consumer(WORK)(Called()).batch
    assert queue_consumer(WORK)(lambda job: None).batch is False
    assert queue_consumer(WORK, batch=True)(lambda jobs: None).batch is True


def refused() -> Iterator[tuple[Callable[..., Any], bool | None, str]]:
    def nothing() -> None: ...

    yield nothing, None, r"'nothing' of queue 'work' takes nothing, and with that no parameters for jobs"

    def two(job: Job[Work], other: Job[Work]) -> None: ...

    yield two, None, r"takes job: .*Job\[.*Work\], other: .*, and with that 2 parameters for jobs"

    def payload(job: Work) -> None: ...

    yield payload, None, r"'payload' of queue 'work' takes job: .*Work, .*; a job's payload is job.payload"

    def unknown(job: Job[Work], attempts: int) -> None: ...

    yield unknown, None, r"takes attempts: int, for which a drain run has no value\. A handler is a function"

    def bare(job: Job[Work], gateway) -> None: ...  # type: ignore[no-untyped-def]

    yield bare, None, r"and with that 2 parameters for jobs"

    def other(job: Job[Other]) -> None: ...

    yield other, None, r"takes Job\[Other\], and the payloads of queue 'work' are Work"

    def others(jobs: list[Job[Other]]) -> None: ...

    yield others, None, r"payloads of queue 'work' are Work"

    def one(job: Job[Work]) -> None: ...

    yield one, True, r"takes job: .*Job\[.*Work\], and batch=True was given"

    def many(jobs: list[Job[Work]]) -> None: ...

    yield many, False, r"batch=False was given; leave batch out"

    def asset(job: Job[Work], context: dg.InitResourceContext) -> None: ...

    yield (
        asset,
        None,
        r"takes context: .*InitResourceContext; a drain run has one context, a dagster.OpExecutionContext",
    )

    def hidden(*args: Any, **kwargs: Any) -> None: ...

    yield hidden, None, r"let the wrapper use functools\.wraps"

    def generator(job: Job[Work]) -> Iterator[Done]:
        yield Done()

    yield generator, None, r"'generator' of queue 'work' is a generator"

    async def async_generator(job: Job[Work]) -> AsyncIterator[Done]:
        yield Done()

    yield async_generator, None, r"is a generator"

    @functools.wraps(one)
    def by_name(*, job: Job[Work]) -> None: ...

    yield by_name, None, r"is called with job, which its wrapper, of \(\*, job: .*, does not take: .*; let the wrapper"

    async def asynchronous(job: Job[Work]) -> None: ...

    @functools.wraps(asynchronous)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return asynchronous(*args, **kwargs)

    yield wrapped, None, r"'work' is a plain wrapper around the async function 'asynchronous', and nothing would await"


@pytest.mark.parametrize(("handler", "batch", "message"), [pytest.param(*one, id=one[0].__name__) for one in refused()])
def test_any_other_shape_is_refused_at_decoration(
    handler: Callable[..., Any], batch: bool | None, message: str
) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        queue_consumer(WORK, batch=batch)(handler)
    if not any(
        other in str(caught.value)
        for other in ("change the annotation", "wrapper as async def", "let the wrapper take")
    ):
        assert "(job: Job[Work]) or of all jobs of a claim (jobs: list[Job[Work]])" in str(caught.value)
    with pytest.raises(InvalidInput, match=message):
        build_drain_op(WORK, handler, name="op", batch=batch)


def test_the_error_of_a_handler_of_a_wrong_payload_names_both() -> None:
    @queue_consumer(QueueSpec("other", Other))
    def takes(job: Job[Other]) -> Retry | None: ...

    assert takes.spec.payload is Other
