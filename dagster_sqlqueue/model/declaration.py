"""What code declares of a queue, compared with the settings that the database has. No I/O."""

from collections.abc import Callable, Mapping
from typing import Any

from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import QueueSettings, QueueSpec

_NONE = "none"

_OPTIONS: dict[str, Callable[[Any], str]] = {
    "strategy": lambda value: f"--strategy {value}",
    "ordered": lambda value: "--ordered" if value else "--unordered",
    "on_poison": lambda value: f"--on-poison {value}",
    "lease_seconds": lambda value: f"--lease {_text(value)}",
    "timeout_seconds": lambda value: f"--timeout {_text(value)}",
    "max_attempts": lambda value: f"--max-attempts {value}",
    "backoff_seconds": lambda value: f"--backoff {_text(value)}",
    "backoff_factor": lambda value: f"--backoff-factor {_text(value)}",
    "backoff_max_seconds": lambda value: f"--backoff-max {_text(value)}",
    "backoff_jitter": lambda value: f"--backoff-jitter {_text(value)}",
    "max_running": lambda value: f"--max-running {_text(value)}",
    "max_running_per_key": lambda value: f"--max-running-per-key {_text(value)}",
    "rate": lambda value: f"--rate {_text(value)}",
    "retention_days": lambda value: f"--retention-days {_text(value)}",
}
"""The option of `sqlqueue create` that gives a setting a value. The number of buckets has a command of its own."""


def declared(queue: QueueSpec[Any] | QueueSettings) -> dict[str, Any]:
    """The settings of a queue by name, as JSON has them: numbers, booleans, texts and null. A backoff that is a function of
    one's own is not among them: the code alone knows it.
    """
    backoff = queue.backoff
    return {
        "bucket_count": queue.bucket_count,
        "strategy": str(queue.strategy),
        "ordered": queue.ordered,
        "on_poison": str(queue.on_poison),
        "lease_seconds": queue.lease_seconds,
        "timeout_seconds": queue.timeout_seconds,
        "max_attempts": queue.max_attempts,
        **(
            {
                "backoff_seconds": backoff.seconds,
                "backoff_factor": backoff.factor,
                "backoff_max_seconds": backoff.max_seconds,
                "backoff_jitter": backoff.jitter,
            }
            if isinstance(backoff, Backoff)
            else {}
        ),
        "max_running": queue.max_running,
        "max_running_per_key": queue.max_running_per_key,
        "rate": None if queue.rate is None else f"{queue.rate.starts}/{_text(queue.rate.seconds)}s",
        "retention_days": queue.retention_days,
    }


def differences(code: Mapping[str, Any], settings: QueueSettings) -> dict[str, tuple[Any, Any]]:
    """The settings about which code and database differ, each as the code declares it and as the database has it.

    Args:
        code: what `declared` made of a `QueueSpec`; a setting that it does not name, or that is not known here, is not
            compared.
        settings: the queue's.
    """
    there = declared(settings)
    return {name: (code[name], there[name]) for name in there if name in code and code[name] != there[name]}


def difference_line(code: Mapping[str, Any], settings: QueueSettings) -> str:
    """One line that names each difference; empty: there is none."""
    found = differences(code, settings)
    if not found:
        return ""
    named = ", ".join(
        f"{name} is {_text(there)} where the code says {_text(said)}" for name, (said, there) in found.items()
    )
    return f"queue {settings.name!r} has other settings than the code: {named}. The database's hold"


def difference_cure(code: Mapping[str, Any], settings: QueueSettings) -> str:
    """The commands that give the queue the settings of the code; empty: there is no difference."""
    found = {name: said for name, (said, _) in differences(code, settings).items()}
    options = [_OPTIONS[name](said) for name, said in found.items() if name in _OPTIONS]
    commands = [f"sqlqueue create {settings.name} {' '.join(options)}"] if options else []
    if "bucket_count" in found:
        commands.append(f"sqlqueue rebucket {settings.name} {found['bucket_count']}")
    return "; ".join(commands)


def _text(value: Any) -> str:
    if value is None:
        return _NONE
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
