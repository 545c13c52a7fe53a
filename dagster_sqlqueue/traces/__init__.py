"""Traces with OpenTelemetry: the producer's context travels with the job to its handler.

A layer on top of the core, which calls its hooks and does not know it. It needs the extra `traces`; where the spans go is up
to the OpenTelemetry SDK of the application, without which nothing is recorded.
"""

from dagster_sqlqueue.traces.context import extract as extract
from dagster_sqlqueue.traces.context import inject as inject
from dagster_sqlqueue.traces.hooks import TraceHooks as TraceHooks
