"""Tell an interrupt of the process from a failure of the code that it came out of. No I/O."""

_interrupts: set[type[BaseException]] = {SystemExit, KeyboardInterrupt, GeneratorExit}
_BY_NAME = frozenset({("greenlet", "GreenletExit")})
"""Interrupts of libraries, by module and name: none of them is imported for it."""


def add_interrupt(kind: type[BaseException]) -> None:
    """Have an exception of a framework, raised in the middle of a handler from outside, end the consumer."""
    _interrupts.add(kind)


def is_interrupt(error: BaseException) -> bool:
    """Return whether an exception that a handler let pass ends the consumer, and is no failure of its job: it ends the
    process, or was raised in the middle of the handler from outside.

    What else is no `Exception` is a failure like one, such as a panic of a Rust extension, or the `CancelledError` of
    something that the handler awaited.
    """
    if isinstance(error, Exception):
        return False
    return isinstance(error, tuple(_interrupts)) or any(
        (kind.__module__, kind.__name__) in _BY_NAME for kind in type(error).__mro__
    )
