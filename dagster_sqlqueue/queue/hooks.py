"""Hooks that a `SqlQueue` enters and leaves around enqueues and publications, for metrics and traces."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

T = TypeVar("T")

Operation: TypeAlias = Literal["send", "publish"]


@dataclass(slots=True)
class EnqueueCall:
    """One call that enqueues jobs, or publishes messages to a topic.

    Attributes:
        destination: the queue's name, or the topic's.
        operation: `send` to a queue, `publish` to a topic.
        changes: what each job or message goes through, in this order, as it was given by the caller, before it is
            checked; a hook appends to it.
        result: what the call returns, once it is done.
    """

    destination: str
    operation: Operation
    changes: list[Callable[[Any], Any]] = field(default_factory=list)
    result: Any = None

    def changed(self, job: Any) -> Any:
        """A job or message after all changes."""
        for change in self.changes:
            job = change(job)
        return job

    def done(self, result: T) -> T:
        """Note what the call returns."""
        self.result = result
        return result


class EnqueueHooks:
    """What is entered and left around each call of `SqlQueue.enqueue` and `Topics.publish`, of one or many, awaited or not.

    It does nothing: override it. What it raises is the call's. In a call that is not awaited it runs in the caller's thread.
    """

    def around_enqueue(self, call: EnqueueCall) -> AbstractContextManager[object]:
        """While jobs are enqueued, or messages published."""
        return nullcontext()


@contextmanager
def around_enqueue(hooks: Sequence[EnqueueHooks], destination: str, operation: Operation) -> Iterator[EnqueueCall]:
    """`around_enqueue` of all of these, the first the outermost."""
    call = EnqueueCall(destination, operation)
    with ExitStack() as stack:
        for hook in hooks:
            stack.enter_context(hook.around_enqueue(call))
        yield call
