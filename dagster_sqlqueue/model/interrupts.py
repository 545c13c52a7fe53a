"""Tell an interrupt of the process from a failure of the code that it came out of. No I/O."""

_ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
_RAISED_FROM_OUTSIDE = frozenset(
    {("dagster._core.errors", "DagsterExecutionInterruptedError"), ("greenlet", "GreenletExit")}
)
"""Interrupts of libraries, by module and name: none of them is imported for it."""


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception that a handler let pass ends the consumer, and is no failure of its job: it ends the
    process, or was raised in the middle of the handler from outside, as Dagster does in a run that is terminated.

    What else is no `Exception` is a failure like one, such as a panic of a Rust extension, or the `CancelledError` of
    something that the handler awaited.
    """
    if isinstance(error, Exception):
        return False
    return isinstance(error, _ENDS) or any(
        (kind.__module__, kind.__name__) in _RAISED_FROM_OUTSIDE for kind in type(error).__mro__
    )
