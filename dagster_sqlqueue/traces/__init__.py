"""Traces with OpenTelemetry: the producer's context travels with the job to its handler.

A layer on top of the core, which calls its hooks and does not know it. It needs the extra `traces`; where the spans go is up
to the OpenTelemetry SDK of the application, without which nothing is recorded.
"""

from dagster_sqlqueue import _extras

with _extras.extra("traces", "opentelemetry"):
    from dagster_sqlqueue.traces.context import extract, inject
    from dagster_sqlqueue.traces.hooks import TraceHooks

__all__ = [
    "TraceHooks",
    "extract",
    "inject",
]
