"""What operators decide about single jobs, and producers who replace them: the model's part and the machine's rules."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime
from uuid import UUID

from hypothesis import strategies as st

from dagster_sqlqueue import NewJob
from dagster_sqlqueue.model.lifecycle import Event, LiveState
from dagster_sqlqueue.queue.selection import Decided, Selection
from tests.statemachine.agreeing import same
from tests.statemachine.drawing import HOUR, JOBS, MOMENTS, Wanted
from tests.statemachine.jobs import NEVER, ModelJob, Moment
from tests.statemachine.machine import QueueMachine, step
from tests.statemachine.model import Model
from tests.support import Work

IDS = st.lists(st.integers(0, 15), min_size=1, max_size=3)
CHOICES = IDS | IDS | IDS | st.sampled_from(["red", "red", "a", "every"])


class DecidedModel(Model):
    """A queue, its operators, and producers who replace what waits."""

    def decide(
        self,
        ids: Sequence[UUID],
        states: Collection[LiveState],
        apply: Callable[[ModelJob], None],
        *,
        turns: bool = True,
    ) -> list[UUID]:
        """Do something to those of the jobs that are in one of the states; returns them."""
        jobs = [job for job in map(self.live.get, ids) if job is not None and job.state in states]
        waited = {job.id for job in jobs if job.parked}
        for job in jobs:
            apply(job)
        if turns and self.keyed:
            # One that only waited for its turn made no room; but it may have been what the first of its key waited for.
            keys = Counter[str]()
            some = {job.ordering_key: job for job in jobs if job.order_no}
            for job in jobs:
                keys[job.ordering_key or ""] += job.order_no is not None and job.id not in waited
            self.promote([job for key, job in some.items() for _ in range(max(keys[key or ""], 1))])
        return [job.id for job in jobs]

    def cancel(self, ids: Sequence[UUID]) -> tuple[set[UUID], set[UUID]]:
        """Cancel; returns those that ended, and those that were asked to."""
        ended = next(self.statements)

        def archive(job: ModelJob) -> None:
            job.step(Event.CANCEL)
            job.ended = ended
            self.archive[job.id] = self.live.pop(job.id)

        def ask(job: ModelJob) -> None:
            job.step(Event.REQUEST_CANCEL)
            job.cancel_requested = True

        asked = self.decide(ids, {LiveState.RUNNING}, ask, turns=False)
        return set(self.decide(ids, {LiveState.QUEUED, LiveState.HELD}, archive)), set(asked)

    def hold_queued(self, ids: Sequence[UUID]) -> set[UUID]:
        """Hold queued jobs."""

        def hold(job: ModelJob) -> None:
            job.step(Event.HOLD)
            job.at = NEVER

        return set(self.decide(ids, {LiveState.QUEUED}, hold))

    def release_held(self, ids: Sequence[UUID]) -> set[UUID]:
        """Release held jobs."""
        now = self.now()

        def release(job: ModelJob) -> None:
            job.step(Event.RELEASE)
            job.at, job.cancel_requested = now, False

        return set(self.decide(ids, {LiveState.HELD}, release, turns=False))

    def reschedule(self, ids: Sequence[UUID], until: Moment | float) -> set[UUID]:
        """Have queued jobs become due at another moment, or after so many hours."""
        now = self.now()
        moment = max(until, now) if isinstance(until, tuple) else (until, now[1])

        def put_off(job: ModelJob) -> None:
            stays = self.spec.ordered and job.parked
            job.step(Event.RESCHEDULE)
            job.run_at, job.at = moment, NEVER if stays else moment

        return set(self.decide(ids, {LiveState.QUEUED}, put_off))

    def reprioritise(self, ids: Sequence[UUID], priority: int) -> set[UUID]:
        """Give live jobs another priority."""

        def change(job: ModelJob) -> None:
            job.step(Event.REPRIORITISE)
            job.priority = priority

        return set(self.decide(ids, set(LiveState), change, turns=False))

    def replace_payload(self, id: UUID, content: int, release: bool) -> set[UUID]:
        """Replace the payload of a job that does not run, or bring an ended one back with it; returns it, if so."""
        changed = self.redrive([id], ["failed", "cancelled"], None)
        now = self.now()

        def change(job: ModelJob) -> None:
            if job.state is LiveState.HELD and release:
                job.step(Event.RELEASE)
                job.at, job.cancel_requested = now, False
            if id not in changed:
                job.step(Event.REPLACE_PAYLOAD)
            job.content = content

        return {*changed, *self.decide([id], {LiveState.QUEUED, LiveState.HELD}, change, turns=False)}

    def redrive(self, ids: Sequence[UUID], states: Collection[str], limit: int | None) -> set[UUID]:
        """Bring ended jobs back, at most so many; returns those that went."""
        went: set[UUID] = set()
        while ids and (limit is None or len(went) < limit):
            room = len(ids) if limit is None else limit - len(went)
            part, ids = ids[:room], ids[room:]
            now = self.now()
            jobs = [job for job in map(self.archive.get, part) if job is not None and job.state in states]
            for job in sorted(jobs, key=lambda job: (job.ended, job.id), reverse=True):
                number = job.order_no or next(self.orders)
                if job.held_key in {other.held_key for other in self.live.values()} - {None}:
                    continue
                job.step(Event.REDRIVE)
                job.at = job.run_at = now
                job.bucket %= self.bucket_count
                job.order_no = number if self.keyed and job.ordering_key else None
                job.limited = job.cancel_requested = False
                self.live[job.id] = self.archive.pop(job.id)
                went.add(job.id)
        return went

    def replace(self, new: Sequence[ModelJob]) -> tuple[int, int]:
        """Put on, or replace what waits under the same unique key; returns how many were put on, and how many replaced."""
        last: dict[object, ModelJob] = {}
        given = Counter(job.unique_key or job.id for job in new)
        for job in new:
            first = last.get(job.unique_key or job.id, job)
            job.id, job.ordering_key = first.id, first.ordering_key
            job.unique_until_claim = first.unique_until_claim
            last[job.unique_key or job.id] = job
        now = self.now()
        replaced, put_off, rest = 0, [], []
        by_key = {job.held_key: job for job in self.live.values() if job.held_key}
        for key, job in last.items():
            if not (old := by_key.get(job.unique_key)):
                rest.append(job)
            elif old.state is LiveState.QUEUED:
                was_due, waits = old.due, old.parked
                old.step(Event.REPLACE)
                old.run_at = now if job.at == (0, 0) else job.at
                old.at = NEVER if waits and old.run_at[0] <= 0 else old.run_at
                old.priority, old.max_attempts, old.tags = job.priority, job.max_attempts, job.tags
                old.content = job.content
                old.cancel_requested = False
                replaced += given[key]
                put_off += [old] if was_due and not old.due else []
        self.promote(put_off)
        inserted = self.enqueue(rest, now)
        replaced += sum(given[job.unique_key or job.id] - 1 for job in rest if job.id in inserted)
        return len(inserted), replaced


class DecidedMachine(QueueMachine):
    """A queue with operators who decide about single jobs."""

    model: DecidedModel
    make_model = DecidedModel

    @step(1, choice=CHOICES)
    def cancel(self, choice: list[int] | str) -> None:
        for ids in self._batches(choice, list(LiveState)):
            changed, requested = self.model.cancel(ids)
            self._expected.changed.extend(changed)
            self._expected.requested.extend(requested)
        self._decided(self.server.operator.cancel("work", self._selection(choice)))

    @step(2, choice=CHOICES, holds=st.booleans())
    def hold_or_release(self, choice: list[int] | str, holds: bool) -> None:
        for ids in self._batches(choice, [LiveState.QUEUED if holds else LiveState.HELD]):
            self._expected.changed.extend((self.model.hold_queued if holds else self.model.release_held)(ids))
        if holds:
            self._decided(self.server.operator.hold_queued("work", self._selection(choice), "to be checked"))
        else:
            self._decided(self.server.operator.release_held("work", self._selection(choice)))

    @step(
        2, choice=CHOICES, priority=st.sampled_from([None, None, 0, 9]), until=st.sampled_from([0, 2 * HOUR, *MOMENTS])
    )
    def delay_or_reprioritise(self, choice: list[int] | str, priority: int | None, until: float | datetime) -> None:
        if priority is not None:
            for ids in self._batches(choice, list(LiveState)):
                self._expected.changed.extend(self.model.reprioritise(ids, priority))
            self._decided(self.server.operator.reprioritise("work", self._selection(choice), priority))
            return
        moment = (MOMENTS[until], 0) if isinstance(until, datetime) else until / HOUR
        for ids in self._batches(choice, [LiveState.QUEUED]):
            self._expected.changed.extend(self.model.reschedule(ids, moment))
        self._decided(self.server.operator.reschedule("work", self._selection(choice), until))

    @step(
        2,
        choice=CHOICES,
        states=st.sampled_from([("failed",), ("cancelled",), ("failed", "cancelled")]),
        limit=st.sampled_from([None, None, 1, 2]),
    )
    def redrive(self, choice: list[int] | str, states: tuple[str, ...], limit: int | None) -> None:
        if isinstance(choice, str):
            ended = [job for job in self.model.archive.values() if self._fits(job, choice) and job.state in states]
            ids = [job.id for job in sorted(ended, key=lambda job: (job.ended, job.id), reverse=True)]
        else:
            ids = self._ids(choice)
        expected = self.model.redrive(ids, states, limit)
        decided = self.server.operator.redrive("work", self._selection(choice), states=states, limit=limit)
        same(set(decided.changed), expected)

    @step(3, index=st.integers(0, 15), content=st.integers(1_000, 1_999), release=st.booleans())
    def replace_payload(self, index: int, content: int, release: bool) -> None:
        (id,) = self._ids([index])
        expected = self.model.replace_payload(id, content, release)
        decided = self.server.operator.replace_payload(self.model.spec, id, Work(n=content), release=release)
        same(set(decided.changed), expected)

    @step(3, jobs=st.lists(JOBS, min_size=1, max_size=4))
    def put_or_replace(self, jobs: list[Wanted]) -> None:
        new = [self._new(job) for job in jobs]
        expected = self.model.replace([self._as_model(job, wanted) for job, wanted in zip(new, jobs, strict=True)])
        same(self._replaced(new), expected)

    def _replaced(self, new: list[NewJob[Work]]) -> tuple[int, int]:
        if len(new) == 1:
            placed = self.server.operator.enqueue(self.model.spec, new[0], on_conflict="replace")
            return int(placed == new[0].id), int(placed is not None and placed != new[0].id)
        done = self.server.operator.enqueue_many(self.model.spec, new, on_conflict="replace")
        return done.inserted, done.replaced

    def _batches(self, choice: list[int] | str, states: Sequence[LiveState]) -> Iterator[list[UUID]]:
        """What a verb decides about at once: the jobs named by their ids, or those of each bucket that fit."""
        self._expected = Decided()
        if not isinstance(choice, str):
            yield self._ids(choice)
            return
        for bucket in self.model.all_buckets:
            jobs = [job for job in self.model.live.values() if job.bucket == bucket and job.state in states]
            if ids := [job.id for job in jobs if self._fits(job, choice)]:
                yield ids

    def _ids(self, choice: Sequence[int]) -> list[UUID]:
        """Of the jobs made so far, counted from the latest one backwards."""
        return list(dict.fromkeys(self.id_of(self.made - index % self.made) for index in choice))

    def _fits(self, job: ModelJob, choice: str) -> bool:
        return choice == "every" or choice in job.tags or choice == job.ordering_key

    def _selection(self, choice: list[int] | str) -> Selection:
        if not isinstance(choice, str):
            return Selection(ids=self._ids(choice))
        return {"red": Selection(tags=["red"]), "a": Selection(ordering_key="a")}.get(choice) or Selection(all=True)

    def _decided(self, decided: Decided) -> None:
        same(
            (set(decided.changed), set(decided.requested)), (set(self._expected.changed), set(self._expected.requested))
        )
        same(len(decided.changed), len(set(decided.changed)))
