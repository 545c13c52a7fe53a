"""Traces with OpenTelemetry: the context of whoever enqueues or publishes travels with the job to whoever handles it.

A room on top of the core's verbs, which do not know it. It needs the extra `traces`; where the spans go is up to the
OpenTelemetry SDK of the application, without which nothing is recorded.
"""

from dagster_sqlqueue.traces.carrying import extract as extract
from dagster_sqlqueue.traces.carrying import inject as inject
from dagster_sqlqueue.traces.handling import traced_handler as traced_handler
from dagster_sqlqueue.traces.producing import TracedQueue as TracedQueue
from dagster_sqlqueue.traces.producing import traced as traced
from dagster_sqlqueue.traces.publishing import TracedTopics as TracedTopics
