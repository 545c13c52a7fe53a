"""Build the launchpad's Dagster jobs, one for each verb."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec, check_queue_name
from dagster_sqlqueue.orchestration.descriptions import description_of
from dagster_sqlqueue.orchestration.given import check_lists, check_mappings
from dagster_sqlqueue.orchestration.launchpad import config as fields
from dagster_sqlqueue.orchestration.launchpad import job_verbs, people, queue_verbs, show_verb
from dagster_sqlqueue.orchestration.launchpad.run_report import Report, report_output
from dagster_sqlqueue.orchestration.page_links import LAUNCHPAD_TAG, QUEUE_TAG, QUEUES_TAG
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, check_resource, under_key
from dagster_sqlqueue.orchestration.run_errors import library_errors_as_failures
from dagster_sqlqueue.schema import migrations

_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


@dataclass(frozen=True, slots=True)
class _Verb:
    config: type[dg.Config]
    function: Callable[..., Report]


_VERBS = {
    "show": _Verb(fields.ShowConfig, show_verb.show),
    "redrive": _Verb(fields.RedriveConfig, job_verbs.redrive),
    "cancel": _Verb(fields.CancelConfig, job_verbs.cancel),
    "hold": _Verb(fields.HoldConfig, job_verbs.hold),
    "release": _Verb(fields.ReleaseConfig, job_verbs.release),
    "reschedule": _Verb(fields.RescheduleConfig, job_verbs.reschedule),
    "reprioritise": _Verb(fields.ReprioritiseConfig, job_verbs.reprioritise),
    "delete": _Verb(fields.DeleteConfig, job_verbs.delete),
    "pause": _Verb(fields.PauseConfig, queue_verbs.pause),
    "resume": _Verb(fields.ResumeConfig, queue_verbs.resume),
    "rebucket": _Verb(fields.RebucketConfig, queue_verbs.rebucket),
    "assign": _Verb(fields.AssignConfig, people.assign),
    "approve": _Verb(fields.ApproveConfig, people.approve),
    "reject": _Verb(fields.RejectConfig, people.reject),
}

VERBS = tuple(_VERBS)
"""The verbs that have a job."""
USUAL_VERBS = ("show", "redrive")
"""The default verbs of each queue: show jobs, and redrive dead letters."""


def build_sqlqueue_launchpad_jobs(
    *queues: QueueSpec[Any] | str,
    name_prefix: str = "sqlqueue",
    verbs: Sequence[str] = VERBS,
    resource: SqlQueueResource | None = None,
    asset_keys: Mapping[str, dg.AssetKey] | None = None,
    resource_key: str = RESOURCE_KEY,
) -> list[dg.JobDefinition]:
    """Build jobs for the launchpad: `<name_prefix>_redrive`, `_cancel`, `_show` and so on.

    Each has one op, `<job>_op`, with a typed config that the launchpad describes. Those that change jobs do a dry run by
    default; one for which nothing was chosen lists what there is, so that each job can be launched as the launchpad opens.
    A run reports its result in its output's metadata, and observes it on the queue's asset. All users of the UI can read
    the config, tags and metadata of a run: it leaves payloads out unless the config asks for them, and sensitive fields are
    `***` in any case.

    Args:
        queues: these alone, a closed choice in the launchpad, and filled in if it is one; none given: any queue.
        name_prefix: the beginning of the jobs' names.
        verbs: a selection of `VERBS`.
        resource: a resource with a database user that is an operator, if the code location's user is only a consumer; None:
            the code location's.
        asset_keys: of the queues whose assets are not `queues/<name>`, by queue; see `asset_key_of`.
        resource_key: of the code location's `SqlQueueResource`.

    Raises:
        InvalidInput: a name, a verb, the resource or the asset keys are not usable.

    Example:
        `dg.Definitions(jobs=build_sqlqueue_launchpad_jobs(), resources={"sqlqueue": SqlQueueResource(url=…)})`
    """
    names = tuple(dict.fromkeys(check_queue_name(q.name if isinstance(q, QueueSpec) else q) for q in queues))
    if not isinstance(name_prefix, str) or not _PREFIX.fullmatch(name_prefix):
        raise InvalidInput(
            f"name_prefix is {name_prefix!r}; give letters, digits and underscores, a letter first, such as 'sqlqueue'"
        )
    check_lists(verbs=verbs)
    check_mappings(asset_keys=asset_keys)
    if unknown := [verb for verb in verbs if verb not in _VERBS]:
        raise InvalidInput(f"verbs holds {unknown[0]!r}; there are {', '.join(_VERBS)}")
    check_resource(resource)
    wanted = tuple(dict.fromkeys(verbs))
    family = _Family(name_prefix, wanted, names, resource, dict(asset_keys or {}), resource_key)
    return [_job(verb, family) for verb in wanted]


@dataclass(frozen=True, slots=True)
class _Family:
    """The common settings of the jobs of one call."""

    prefix: str
    verbs: tuple[str, ...]
    queues: tuple[str, ...]
    resource: SqlQueueResource | None
    asset_keys: Mapping[str, dg.AssetKey]
    resource_key: str


def _job(called: str, family: _Family) -> dg.JobDefinition:
    verb, name, queues = _VERBS[called], f"{family.prefix}_{called}", family.queues
    config_class = fields.bound(verb.config, queues)
    further: dict[str, Any] = {}
    if verb.function is show_verb.show:
        further["queues"] = queues
        further["redrive"] = f"{family.prefix}_redrive" if "redrive" in family.verbs else ""

    @dg.op(
        name=f"{name}_op",
        description=description_of(verb.function),
        out=dg.Out(
            dg.Nothing,
            description="Stores nothing; the queue, whether anything was changed, and counts are its metadata.",
        ),
        tags={"kind": "sqlqueue"},
    )
    @under_key(family.resource_key)
    def run_verb(
        context: dg.OpExecutionContext,
        config: config_class,  # type: ignore[valid-type]
        sqlqueue: SqlQueueResource,
    ) -> dg.Output[None]:
        with library_errors_as_failures():
            _refuse_environment(context.run_config)
            migrations.check(sqlqueue.queue.database)
            report = (
                queue_verbs.list_queues(sqlqueue.queue, queues)
                if fields.names_no_queue(config)
                else verb.function(sqlqueue.queue, config, **further)
            )
            if queues and report.queue is not None and report.queue not in queues:
                raise InvalidInput(f"the job is of queue {report.queue!r}; this shows jobs of {', '.join(queues)}")
        return report_output(context, report, family.asset_keys)

    @dg.job(
        name=name,
        description=description_of(verb.function),
        executor_def=dg.in_process_executor,
        resource_defs=None if family.resource is None else {family.resource_key: family.resource},
        tags={
            LAUNCHPAD_TAG: called,
            # A deployment that retries runs must not repeat an operator's decision.
            "dagster/max_retries": "0",
            **({QUEUE_TAG: queues[0]} if len(queues) == 1 else {}),
            **({QUEUES_TAG: ",".join(queues)} if len(queues) > 1 else {}),
        },
    )
    def launchpad_job() -> None:
        run_verb()

    return launchpad_job


def _refuse_environment(run_config: Mapping[str, Any]) -> None:
    """Refuse fields that ask for an environment variable: Dagster would fill in any variable of the deployment, secrets
    included, and a reason or a name is written to the job and shown.

    Raises:
        InvalidInput: a field does.
    """
    for op in run_config.get("ops", {}).values():
        for name, given in (op.get("config") or {}).items():
            values = given if isinstance(given, list) else [given]
            # Not in the condition on the payload: a field of it may be named env.
            if name != "payload" and any(isinstance(value, Mapping) for value in values):
                raise InvalidInput(f"{name} asks for an environment variable; write the value itself")
