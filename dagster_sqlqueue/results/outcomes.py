"""Read the outcomes of jobs, and wait for them."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self
from uuid import UUID

from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.selection import job_id
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs
from dagster_sqlqueue.results.model import JobOutcome, earliest_end, outcome_of
from dagster_sqlqueue.results.notifications import JobEndListener
from dagster_sqlqueue.results.waits import Wait

_AT_ONCE = 1_000


class OutcomeVerbs(ServiceVerbs):
    """How outcomes are read and waited for.

    Args:
        queue: the queues of the schema.
        listen: as for `Results`.
    """

    def __init__(self, queue: SqlQueue, *, listen: bool = True) -> None:
        super().__init__(queue)
        self._listen = listen
        self._end_listener = JobEndListener(queue.database)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection that listens back. The queues themselves stay usable."""
        self._end_listener.close()

    def outcome(self, id: UUID | str) -> JobOutcome:
        """How a job is, or how it ended; of one that ended more than once, its latest end.

        Raises:
            InvalidInput: this is no job id.
            UnknownJob: there is no such job, or it was trimmed.
        """
        return self.outcomes([id])[job_id(id)]

    def outcomes(self, ids: Iterable[UUID | str]) -> dict[UUID, JobOutcome]:
        """How jobs are, or how they ended, by their ids and in their order.

        Raises:
            InvalidInput: one is no job id.
            UnknownJob: one of the jobs does not exist, or was trimmed; the message names it.
        """
        wanted = _job_ids(ids)
        found = self._found(wanted)
        if missing := [id for id in wanted if id not in found]:
            raise UnknownJob(
                f"there is no job {missing[0]}{_and_more(missing)} in schema {self.database.schema!r} of"
                f" {self.database.where}: it was never enqueued, its transaction was rolled back or is not committed"
                " yet, or it ended and was trimmed since"
            )
        return {id: found[id] for id in wanted}

    def wait(self, id: UUID | str, *, timeout_seconds: float | None = None) -> JobOutcome:
        """Wait until a job has ended, in whatever way; returns how.

        Args:
            id: the job; it is committed.
            timeout_seconds: how long to wait; None for as long as it takes, 0 to check once.

        Raises:
            InvalidInput: an argument is not usable.
            UnknownJob: there is no such job, or it was removed meanwhile.
            WaitTimedOut: it has not ended; the message says where it is.
            DatabaseUnavailable: the database stayed away for a minute, or until the time was up.
        """
        return self.wait_many([id], timeout_seconds=timeout_seconds)[job_id(id)]

    def wait_many(self, ids: Iterable[UUID | str], *, timeout_seconds: float | None = None) -> dict[UUID, JobOutcome]:
        """Wait until all of these jobs have ended; returns how, in the order of the ids.

        Args:
            ids: the jobs; they are committed.
            timeout_seconds: how long to wait for the last of them.

        Raises:
            InvalidInput, UnknownJob, WaitTimedOut, DatabaseUnavailable: as for `wait`.
        """
        waiting = self._wait(ids, timeout_seconds)
        if waiting.poll():
            return waiting.outcomes
        event = threading.Event()
        with self._watching(waiting, event.set):
            while not waiting.poll():
                event.wait(waiting.pause(listening=self._end_listener.listening))
                event.clear()
        return waiting.outcomes

    async def await_outcome(self, id: UUID | str, *, timeout_seconds: float | None = None) -> JobOutcome:
        """`wait` in a program that uses `asyncio`; the database is asked in threads of their own."""
        return (await self.await_outcomes([id], timeout_seconds=timeout_seconds))[job_id(id)]

    async def await_outcomes(
        self, ids: Iterable[UUID | str], *, timeout_seconds: float | None = None
    ) -> dict[UUID, JobOutcome]:
        """`wait_many` in a program that uses `asyncio`; the database is asked in threads of their own."""
        waiting = self._wait(ids, timeout_seconds)
        if await asyncio.to_thread(waiting.poll):
            return waiting.outcomes
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(event.set)

        block = self._watching(waiting, wake)
        block.__enter__()
        try:
            while not await asyncio.to_thread(waiting.poll):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(event.wait(), waiting.pause(listening=self._end_listener.listening))
                event.clear()
        finally:
            await asyncio.shield(asyncio.to_thread(block.__exit__, None, None, None))
        return waiting.outcomes

    def _wait(self, ids: Iterable[UUID | str], timeout_seconds: float | None) -> Wait:
        return Wait(self.outcomes, self.database, _job_ids(ids), timeout_seconds=timeout_seconds, notified=self._listen)

    def _found(self, ids: Sequence[UUID]) -> dict[UUID, JobOutcome]:
        found: dict[UUID, JobOutcome] = {}
        for at in range(0, len(ids), _AT_ONCE):
            some = ids[at : at + _AT_ONCE]
            found.update(self._rows(some, earliest_end(some)))
            if missing := [id for id in some if id not in found]:
                found.update(self._rows(missing, "-infinity"))
        return found

    def _rows(self, ids: Sequence[UUID], since: str) -> dict[UUID, JobOutcome]:
        rows = self.database.run("outcomes", {"ids": list(ids), "since": since})
        return {row[0]: outcome_of(row) for row in rows}

    @contextlib.contextmanager
    def _watching(self, waiting: Wait, wake: Callable[[], None]) -> Iterator[None]:
        """Listen for ends while the block runs, and unregister the wait after it."""
        if not self._listen or self.database.shared:
            yield
            return
        with self._end_listener.watch(waiting.open, wake):
            try:
                yield
            finally:
                waiting.unfollow()


def _job_ids(ids: Iterable[UUID | str]) -> list[UUID]:
    if isinstance(ids, str | bytes | UUID) or not isinstance(ids, Iterable):
        raise InvalidInput(f"{ids!r:.100} is not several job ids; give a list of them, or ask for one")
    return list(dict.fromkeys(map(job_id, ids)))


def _and_more(missing: Sequence[UUID]) -> str:
    return f" (and {len(missing) - 1:,} more)" if len(missing) > 1 else ""
