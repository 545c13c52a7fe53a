"""Hooks that a consumer enters and leaves around its work, for metrics and traces."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from dagster_sqlqueue.consumer.annotations import is_async
from dagster_sqlqueue.consumer.settlement import DrainSummary
from dagster_sqlqueue.model.job import Job
from dagster_sqlqueue.queue.leases import Leases

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class HandlerCall:
    """One call of a handler.

    Attributes:
        jobs: what it is given: one job, or if it takes a batch all jobs of a claim.
        batch: whether it takes a batch.
        returned: its value, once it has returned.
    """

    jobs: Sequence[Job[Any]]
    batch: bool
    returned: Any = None


class ConsumerHooks:
    """What is entered and left around the work of a `Consumer`. These methods do nothing: override some.

    They run in the thread of the work, and `around_handler` of an async handler in its task. What they raise is not caught:
    in `around_handler` it is the handler's, and a retry; elsewhere it ends the drain, once outcomes are written and what was
    claimed is given back. An error of the database cannot be suppressed in `around_claim`.
    """

    def around_work(self, queue: str, summary: DrainSummary) -> AbstractContextManager[object]:
        """While the consumer works.

        Args:
            queue: the queue's name.
            summary: the consumer's, which counts on meanwhile; it begins with the counts of earlier drains of the consumer.
        """
        return nullcontext()

    def around_claim(self, queue: str, verb: str) -> AbstractContextManager[object]:
        """While the database is asked for jobs.

        Args:
            queue: the queue's name.
            verb: of `Leases`: `claim`, `finish_and_claim`, which ends the jobs before as well, `lock_due` or
                `finish_and_lock`; or `claim_ahead` or `lock_ahead`, where only the answer is waited for to what was sent
                before the last batch was begun.
        """
        return nullcontext()

    def around_handler(self, call: HandlerCall) -> AbstractContextManager[object]:
        """While a handler is called. Not entered for jobs whose payload lets no handler begin."""
        return nullcontext()


def hooked(handler: Any, hooks: Sequence[ConsumerHooks]) -> Any:
    """Return the handler with `around_handler` of these around each call; without any the handler itself.

    For a handler that something else calls; a `Consumer` that is given hooks does it by itself.

    Args:
        handler: of a job or of a batch, async or not.
        hooks: the first is the outermost.
    """
    if not hooks:
        return handler
    if is_async(handler):

        @wraps(handler)
        async def awaited(given: Any) -> Any:
            with _around(hooks, given) as call:
                call.returned = await handler(given)
            return call.returned

        return awaited

    @wraps(handler)
    def called(given: Any) -> Any:
        with _around(hooks, given) as call:
            call.returned = handler(given)
        return call.returned

    return called


class ClaimHooks:
    """`around_claim` of a consumer's hooks. What it raises is kept until it can be raised without losing jobs or outcomes.

    Args:
        queue: the queue's name.
        hooks: the first is the outermost.
    """

    def __init__(self, queue: str, hooks: Sequence[ConsumerHooks]) -> None:
        self._queue = queue
        self._hooks = tuple(hooks)
        self._kept: BaseException | None = None

    def around(self, verb: str) -> AbstractContextManager[object]:
        """Enter and leave the hooks around a block that asks the database for jobs, which is run in any case."""
        return self._around(verb) if self._hooks else nullcontext()

    def complain(self) -> None:
        """Raise what was kept, if anything was."""
        kept, self._kept = self._kept, None
        if kept is not None:
            raise kept

    def forget(self) -> None:
        """Drop what was kept: the drain has ended with another error."""
        self._kept = None

    def watch(self, leases: Leases) -> Leases:
        """Return the leases with the hooks around each call that takes jobs; without any the leases themselves."""
        if not self._hooks:
            return leases

        def around(verb: str, call: Callable[P, R]) -> Callable[P, R]:
            def called(*given: P.args, **how: P.kwargs) -> R:
                with self.around(verb):
                    return call(*given, **how)

            return called

        own = copy(leases)
        own.claim = around("claim", leases.claim)
        own.finish_and_claim = around("finish_and_claim", leases.finish_and_claim)
        own.lock_due = around("lock_due", leases.lock_due)
        own.finish_and_lock = around("finish_and_lock", leases.finish_and_lock)
        return own

    @contextmanager
    def _around(self, verb: str) -> Iterator[None]:
        hooks: AbstractContextManager[object] = nullcontext()
        with self._keeping():
            entering = _all([hook.around_claim(self._queue, verb) for hook in self._hooks])
            entering.__enter__()
            hooks = entering
        try:
            yield
        except BaseException as error:
            with self._keeping(but=error):
                hooks.__exit__(type(error), error, error.__traceback__)
            raise
        with self._keeping():
            hooks.__exit__(None, None, None)

    @contextmanager
    def _keeping(self, *, but: BaseException | None = None) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if error is not but:
                self._kept = self._kept or error


def around_work(hooks: Sequence[ConsumerHooks], queue: str, summary: DrainSummary) -> AbstractContextManager[object]:
    """`around_work` of all of these, the first the outermost."""
    return _all([hook.around_work(queue, summary) for hook in hooks])


@contextmanager
def _around(hooks: Sequence[ConsumerHooks], given: Any) -> Iterator[HandlerCall]:
    batch = not isinstance(given, Job)
    call = HandlerCall(given if batch else (given,), batch)
    with _all([hook.around_handler(call) for hook in hooks]):
        yield call


@contextmanager
def _all(managers: Sequence[AbstractContextManager[object]]) -> Iterator[None]:
    with ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager)
        yield
