"""What comes to people, and what runs by itself: jobs handed over, held ones adopted, and the rule of a queue's share."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from dagster_sqlqueue.db.executors import CallerConnection, Executor
from dagster_sqlqueue.display import shortened
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import Job
from dagster_sqlqueue.model.numbers import is_whole
from dagster_sqlqueue.model.queue import check_queue_name
from dagster_sqlqueue.payload.serialization import object_text
from dagster_sqlqueue.people.model import REASON_LIMIT, Action, AutomationRule, check_name, check_percent, check_reason
from dagster_sqlqueue.people.transitions import MOST_JOBS
from dagster_sqlqueue.queue.selection import Decided, JobRow, Selection
from dagster_sqlqueue.queue.service_verbs import ServiceVerbs

_MOST = 1_000_000
_NIL = UUID(int=0)
_HIGHEST_PRIORITY = 9


class RuleVerbs(ServiceVerbs):
    """How jobs come to people."""

    def hand_over(
        self,
        queue: str,
        selection: Selection,
        *,
        by: str,
        reason: str,
        review: bool | None = None,
        four_eyes: bool | None = None,
        connection: CallerConnection | None = None,
    ) -> Decided:
        """Take queued jobs out of the automatic line: no consumer claims them, and people may take them. In an ordered queue
        the key stops there.

        Args:
            queue: its name.
            selection: which jobs; of those that fit, the queued ones.
            by: who hands them over.
            reason: why; also kept as the job's error.
            review: whether what is done has to be approved; None: as the queue's rule says.
            four_eyes: whether another person has to approve it, which implies a review; None: as in the queue's rule.
            connection: the caller's, whose transaction it joins, for jobs that are named by their ids; None: transactions of
                its own.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        parameters = _opening(queue, Action.HAND_OVER, by, check_reason(reason, needed=True), review, four_eyes)
        return self.queue.hold_queued(queue, selection, reason, also=partial(_open, parameters), connection=connection)

    def adopt(
        self,
        queue: str,
        *,
        by: str,
        reason: str | None = None,
        review: bool | None = None,
        four_eyes: bool | None = None,
        limit: int = 10_000,
    ) -> list[UUID]:
        """Make tasks of the held jobs that people have not got yet: those that their handlers ended with `Hold`, those of
        poisoned keys, those that an operator held. Ends the tasks whose jobs were released, cancelled or completed past
        their people, too. Call it as often as people are to see new work; again, it finds nothing to do. A job
        that another transaction is deciding about is left to the next call.

        Args:
            queue: its name.
            by: who does, for the histories.
            reason: why; None: what each job is held for.
            review: as for `hand_over`.
            four_eyes: as for `hand_over`.
            limit: the most jobs, 1 to 1,000,000.

        Returns:
            The jobs that became tasks.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        check_limit(limit, _MOST)
        parameters = _opening(queue, Action.ADOPT, by, check_reason(reason), review, four_eyes)
        self._withdraw(queue, by)
        adopted: list[UUID] = []
        for bucket in range(self.queue.settings(queue).claim_buckets):
            place = {"after_priority": _HIGHEST_PRIORITY, "after_id": _NIL}
            while len(adopted) < limit:
                page = {"queue": queue, "bucket": bucket, "scan": MOST_JOBS, **place}
                ids, scanned, priority, last = self.database.run("tasks_missing", page)[0]
                if ids:
                    adopted += self.database.transact(partial(_adopt, parameters, ids[: limit - len(adopted)]))
                if scanned < MOST_JOBS:
                    break
                place = {"after_priority": priority, "after_id": last}
        return adopted

    def set_rule(
        self,
        queue: str,
        *,
        automatic_percent: float = 100.0,
        always_people: Mapping[str, Any] | str | None = None,
        review: bool = False,
        four_eyes: bool = False,
    ) -> AutomationRule:
        """Say how much of a queue runs by itself, in place of what was said before. It counts from the next question on:
        jobs that people have stay theirs.

        Args:
            queue: its name.
            automatic_percent: of its jobs, 0 to 100.
            always_people: a JSON object; a job whose payload contains it, as `@>` of PostgreSQL sees it, is people's
                whatever the percentage is.
            review: whether what people do has to be approved.
            four_eyes: whether another person has to approve it, which implies a review.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        always = None if always_people is None else object_text("always_people", always_people)
        if always == "{}":
            raise InvalidInput(
                "always_people is {}, which every payload contains; for that, set automatic_percent to 0"
            )
        parameters = {
            "queue": check_queue_name(queue),
            "automatic_percent": check_percent(automatic_percent),
            "always_people": always,
            "review": check_flag("review", review) or check_flag("four_eyes", four_eyes),
            "four_eyes": four_eyes,
        }
        while not (rows := self.database.run("automation_rule_set", parameters)):
            self.queue.catalog.check_exists(queue)
        return AutomationRule(*rows[0])

    def rule(self, queue: str) -> AutomationRule:
        """The rule of a queue; one that was given none runs wholly by itself.

        Raises:
            InvalidInput: the name is not usable.
            UnknownQueue: there is no such queue.
        """
        rows = self.database.run("automation_rule", {"queue": check_queue_name(queue)})
        if not rows:
            self.queue.catalog.check_exists(queue)
            return AutomationRule(queue)
        return AutomationRule(*rows[0])

    def is_automatic(self, job: Job[Any] | JobRow) -> bool:
        """Whether a job runs by itself as its queue's rule is now: what a handler asks before it begins, to end the job with
        `Hold` if not. What people have given back always does.

        Args:
            job: as its handler was given it, or as it was read.
        """
        if not isinstance(job, Job | JobRow):
            raise InvalidInput(
                f"job is a {type(job).__name__}; give the Job that a handler gets, or what queue.job() returns"
            )
        ((percent, always_people, given_back),) = self.database.run(
            "automation_of_job", {"id": job.id, "queue": job.queue}
        )
        return given_back or (not always_people and AutomationRule(job.queue, percent).covers(job.id))

    def route(self, queue: str, *, by: str, limit: int = 10_000) -> Decided:
        """Hand those of the queued jobs over that the queue's rule gives to people, without a consumer claiming them first.

        It reads all queued jobs, page by page; what comes in or moves meanwhile, the next call finds, or the handler that
        asks `is_automatic`.

        Args:
            queue: its name.
            by: who does, for the histories.
            limit: the most jobs, 1 to 1,000,000.

        Raises:
            InvalidInput: an argument is not usable; nothing was changed.
            UnknownQueue: there is no such queue.
        """
        check_name("by", by)
        check_limit(limit, _MOST)
        rule = self.rule(queue)
        decided = Decided()
        if rule.automatic_percent >= 100 and rule.always_people is None:
            return decided
        reasons = {
            True: shortened(f"always for people: {rule.always_people}", REASON_LIMIT),
            False: f"{rule.automatic_percent:g} % of the queue are automatic",
        }
        for always, ids in self._given_to_people(rule):
            room = limit - len(decided.changed)
            done = self.hand_over(queue, Selection(ids=ids[:room]), by=by, reason=reasons[always])
            decided.changed.extend(done.changed)
            if len(decided.changed) >= limit:
                break
        return decided

    def _withdraw(self, queue: str, by: str) -> None:
        """End the tasks whose jobs were decided about past them, page by page."""
        after = _NIL
        while True:
            page = {"queue": queue, "actor": by, "after_id": after, "limit": MOST_JOBS}
            _, scanned, after = self.database.run("tasks_withdraw", page)[0]
            if scanned < MOST_JOBS:
                return

    def _given_to_people(self, rule: AutomationRule) -> Iterator[tuple[bool, list[UUID]]]:
        """The queued jobs that a rule gives to people, page by page; with each part whether they always are theirs."""
        static = {
            "queue": rule.queue,
            "always_people": rule.always_people,
            "only_always": rule.automatic_percent >= 100,
            "scan": MOST_JOBS,
        }
        for bucket in range(self.queue.settings(rule.queue).claim_buckets):
            place = {"after_priority": _HIGHEST_PRIORITY, "after_at": "-infinity", "after_id": _NIL}
            while True:
                row = self.database.run("tasks_of_rule", {**static, "bucket": bucket, **place})[0]
                ids, always, scanned, priority, at, last = row
                found = list(zip(ids, always, strict=True))
                for kind in (True, False):
                    if theirs := [id for id, it in found if it is kind and (kind or not rule.covers(id))]:
                        yield kind, theirs
                if scanned < MOST_JOBS:
                    break
                place = {"after_priority": priority, "after_at": at, "after_id": last}


def check_limit(limit: object, most: int) -> int:
    """The limit, if a call may have it.

    Raises:
        InvalidInput: it may not.
    """
    if not is_whole(limit, 1, most):
        raise InvalidInput(f"limit is {limit!r}; it must be a whole number of 1 to {most:,}")
    return limit


def check_flag(name: str, value: object) -> bool:
    """The answer, if it is one.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(value, bool):
        raise InvalidInput(f"{name} is {value!r}; it must be True or False")
    return value


def _opening(
    queue: str, action: Action, by: str, reason: str | None, review: bool | None, four_eyes: bool | None
) -> dict[str, Any]:
    for name, value in (("review", review), ("four_eyes", four_eyes)):
        if value is not None:
            check_flag(name, value)
    if review is False and four_eyes:
        raise InvalidInput("review is False and four_eyes is True; four eyes need a review")
    return {
        "queue": check_queue_name(queue),
        "actor": check_name("by", by),
        "action": str(action),
        "reason": reason,
        "review": review,
        # Without a review there is no second person.
        "four_eyes": False if review is False else four_eyes,
    }


def _open(parameters: Mapping[str, Any], executor: Executor, ids: Sequence[UUID]) -> None:
    # An end of what is left of an earlier task may be under way: the number of its event is taken.
    executor.run("task_lock", {"ids": list(ids)})
    executor.run("task_open", {**parameters, "ids": list(ids), "anew": True})


def _adopt(parameters: Mapping[str, Any], ids: Sequence[UUID], executor: Executor) -> list[UUID]:
    # Whoever opens or ends a task with its job locks the job: from here on, the number of its next event is known. One that
    # is locked is being decided about.
    locked = executor.run("lock_live", {"queue": parameters["queue"], "ids": list(ids)})
    held = [id for id, state, *_ in locked if state == "held"]
    opened = executor.run("task_open", {**parameters, "ids": held, "anew": False}) if held else []
    return [row[0] for row in opened]
