"""What the tests of traces share: spans kept in memory."""

import json
import sys
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.traces import TraceHooks


class Recorded:
    """A provider of tracers, and the spans that have ended."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.hooks = TraceHooks(self.provider)

    def spans(self, name: str | None = None) -> list[ReadableSpan]:
        """In the order of their ends."""
        return [span for span in self._kept.get_finished_spans() if name in (None, span.name)]

    def one(self, name: str) -> ReadableSpan:
        """The only one of that name."""
        (span,) = self.spans(name)
        return span

    def everything(self) -> str:
        """All that the spans hold, as text."""
        return "\n".join(span.to_json() for span in self.spans())


def traced(queue: SqlQueue, recorded: Recorded) -> SqlQueue:
    """The same queues, whose enqueues and publications are recorded."""
    return SqlQueue(queue.database, hooks=[recorded.hooks])


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Of the trace and of the span."""
    return f"{span.context.trace_id:032x}", f"{span.context.span_id:016x}"


def parent(span: ReadableSpan) -> tuple[str, str] | None:
    """The ids of the span above, if there is one."""
    return None if span.parent is None else (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}")


def portable(span: ReadableSpan) -> dict[str, Any]:
    """A span, as it can be sent to another process."""
    return {
        "name": span.name,
        "ids": list(ids(span)),
        "parent": span.parent and list(parent(span) or ()),
        "attributes": dict(span.attributes or {}),
    }


def print_spans(recorded: Recorded) -> None:
    """The spans as one line of JSON."""
    json.dump([portable(span) for span in recorded.spans()], sys.stdout)
