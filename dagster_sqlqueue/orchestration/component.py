"""A queue as a component of a `dg` project, configured in YAML; only the handler is Python."""

import dataclasses
import re
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFn
from pydantic import BaseModel, ConfigDict

from dagster_sqlqueue.consumer.annotations import payloads_of
from dagster_sqlqueue.db.schema_name import default_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.model.queue import PoisonPolicy, QueueSpec, RateLimit, Strategy
from dagster_sqlqueue.orchestration.assets import QueueAssetData, build_sqlqueue_asset_spec
from dagster_sqlqueue.orchestration.attributes import (
    AssetResolver,
    BackoffAttributes,
    CheckAttributes,
    FreshnessAttributes,
    RateAttributes,
    SensorAttributes,
    said,
)
from dagster_sqlqueue.orchestration.checks import CheckThresholds, build_sqlqueue_checks
from dagster_sqlqueue.orchestration.cleanup import build_cleanup_sensors
from dagster_sqlqueue.orchestration.consumer import QueueConsumer, queue_consumer
from dagster_sqlqueue.orchestration.create_job import build_create_job, helping
from dagster_sqlqueue.orchestration.drain import DrainMode
from dagster_sqlqueue.orchestration.launchpad import USUAL_VERBS, build_sqlqueue_launchpad_jobs
from dagster_sqlqueue.orchestration.observe_job import build_observe_job
from dagster_sqlqueue.orchestration.references import resolve
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource
from dagster_sqlqueue.orchestration.scaffolding import URL_VARIABLE, SqlQueueScaffolder
from dagster_sqlqueue.orchestration.sensor import build_sqlqueue_sensor
from dagster_sqlqueue.payload.serialization import AnyObject

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dg.scaffold_with(SqlQueueScaffolder)
class SqlQueueComponent(dg.Component, SensorAttributes):
    """A SQL job queue: an asset, a job that works it off, and a sensor that starts the job's runs.

    One handler, a function of one job, is all that it needs. Nothing connects before a run or a tick: the database's URL
    is in an environment variable, and only the variable's name is written down. The sensor creates the queue, unless
    `create: false`; the job `create_<queue>` and `sqlqueue create` do as well.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    queue: Annotated[
        str, said("The queue's name: lower-case letters, digits and _, beginning with a letter.", "reminders")
    ]
    handler: Annotated[
        str | Callable[..., Any],
        said(
            "The function to call with each job: package.module:function, or .module:function for a module beside"
            " defs.yaml. Also a function that handles has bound to a queue, or a consumer of queue_consumer.",
            "my_project.jobs:remind",
            ".handler:remind",
            as_type=str,
        ),
    ]
    payload: Annotated[
        str | type[BaseModel] | None,
        said(
            "The pydantic model of the payloads: package.module:Model. Unset: the model of the handler's annotation"
            " Job[Model], else any JSON object.",
            "my_project.jobs:Reminder",
            as_type=str,
        ),
    ] = None
    url_env: Annotated[
        str, said("The name of the environment variable that holds the database's URL; never the URL.", URL_VARIABLE)
    ] = URL_VARIABLE
    schema_name: Annotated[
        str | None,
        said(
            "The schema that holds the queue's tables. Unset: SQLQUEUE_SCHEMA of the environment, else sqlqueue.",
            "sqlqueue",
        ),
    ] = None
    resource: Annotated[
        bool,
        said(
            "Whether to provide the resource; false where the project has one of that key. Components with the same url_env"
            " and schema_name share it."
        ),
    ] = True
    resource_key: Annotated[
        str,
        said(
            "The key of the queue's resource: another one for queues of a second database, which their jobs are named by."
        ),
    ] = RESOURCE_KEY
    create: Annotated[
        bool, said("Whether the sensor creates a missing queue. It never changes an existing one.", False)
    ] = True

    buckets: Annotated[int | None, said("The number of buckets of a new queue, 1 to 1024. Unset: 16.", 16)] = None
    strategy: Annotated[Strategy | None, said("How a claim chooses its jobs. Unset: round_robin.", "fifo")] = None
    lease_seconds: Annotated[float | None, said("How long a claim holds without a heartbeat. Unset: 60.", 60)] = None
    timeout_seconds: Annotated[float | None, said("How long one job may take. Unset: ten leases.", 900)] = None
    max_attempts: Annotated[int | None, said("Attempts before a job goes to the dead letter. Unset: 5.", 5)] = None
    backoff: Annotated[BackoffAttributes | None, said("The wait between a job's attempts.", {"seconds": 10})] = None
    ordered: Annotated[
        bool | None, said("Whether jobs with the same ordering key run one at a time, in their order.")
    ] = None
    on_poison: Annotated[
        PoisonPolicy | None,
        said("What an ordered queue does with a key after a job that failed for good. Unset: dead_letter.", "stop"),
    ] = None
    max_running: Annotated[int | None, said("The most jobs of the queue that run at a time. Unset: no limit.", 50)] = (
        None
    )
    max_running_per_key: Annotated[
        int | None, said("The most jobs of one ordering key that run at a time. Unset: no limit.", 2)
    ] = None
    rate: Annotated[
        RateAttributes | None, said("The most jobs that begin within an interval. Unset: no limit.", {"starts": 100})
    ] = None
    retention_days: Annotated[
        int | None, said("How many days the archive keeps ended jobs; 0: for ever. Unset: 30.", 90)
    ] = None

    mode: Annotated[
        DrainMode | None,
        said(
            "When a run ends: batch, when its buckets are empty; linger, some seconds later, listening meanwhile; standing,"
            " when its time is up and its successor has started. Unset: linger.",
            "linger",
        ),
    ] = None
    batch: Annotated[
        bool | None,
        said(
            "Whether the handler takes the list of all jobs of a claim, instead of one job. Unset: by its annotation."
        ),
    ] = None
    transactional: Annotated[
        bool, said("Whether runs claim, handle and complete each batch in one transaction; for quick handlers.")
    ] = False
    concurrency: Annotated[
        int | None,
        said(
            "How many jobs a run handles at a time: a plain function in as many threads, an async one on its event loop; not"
            " for a batch, nor with transactional. Unset: a plain function one, an async one all jobs of a claim.",
            20,
        ),
    ] = None
    maintain: Annotated[bool, said("Whether runs maintain the schema, beside their work, when that is due.", False)] = (
        True
    )
    run_tags: Annotated[
        dict[str, str] | None,
        said("Tags in Dagster of each run that processes the queue, for example for a limit.", {"team": "payments"}),
    ] = None

    launchpad: Annotated[
        list[str] | None,
        said(
            "The verbs that have a job `<queue>_<verb>` in the launchpad; [] for none. Unset: show and redrive.",
            ["show", "redrive", "cancel"],
        ),
    ] = None
    cleanup: Annotated[
        bool,
        said(
            "Whether to add two sensors that release the leases and the slot of a killed run at once, and report on its page"
            " what it had done.",
            False,
        ),
    ] = True

    add_asset: Annotated[
        bool,
        said(
            "Whether to add the queue's asset; false where the project has one of that key, such as that of"
            " build_fanout_asset.",
            False,
        ),
    ] = True
    asset: Annotated[TranslationFn[QueueAssetData] | None, AssetResolver()] = None
    freshness: Annotated[
        FreshnessAttributes | None,
        said(
            "How old the last materialisation may be: jobs ended, or nothing was due. More than an hour for a queue that may"
            " be idle: its sensor materialises it once an hour.",
            {"fail_seconds": 7200},
        ),
    ] = None

    checks: Annotated[
        CheckAttributes | None,
        said("The thresholds above which the queue's checks fail.", {"oldest_ready_seconds": 60}),
    ] = None

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """The type's entry in `dg list components` and Dagster's documentation."""
        return dg.ComponentTypeSpec(tags=["queue", "sql", "postgres", "integration"])

    def get_asset_spec(self, data: QueueAssetData) -> dg.AssetSpec:
        """Build the queue's asset; override it to change what the attribute `asset` cannot."""
        freshness = None if self.freshness is None else self.freshness.policy()
        made = build_sqlqueue_asset_spec(data.spec, schema=data.schema, freshness_policy=freshness)
        return made if self.asset is None else self.asset(made, data)

    def get_consumer(self, context: dg.ComponentLoadContext) -> QueueConsumer[Any]:
        """Bind the handler to the queue; override it to build another job.

        Raises:
            InvalidInput: the handler, the payload or a setting is not usable.
        """
        package = None
        if any(isinstance(named, str) and named.startswith(".") for named in (self.handler, self.payload)):
            package = context.defs_relative_module_name(context.path.parent if context.path.is_file() else context.path)
        found: Any = resolve("the handler", self.handler, package) if isinstance(self.handler, str) else self.handler
        bound = found.spec if isinstance(getattr(found, "spec", None), QueueSpec) else None
        handler = found if bound is None else found.handler
        spec = self._spec(bound, handler, package)
        if isinstance(found, QueueConsumer):
            return self._as_it_is(found, spec)
        return queue_consumer(
            spec,
            mode=self.mode or DrainMode.LINGER,
            batch=self.batch,
            transactional=self.transactional,
            concurrency=self.concurrency,
            lease_seconds=getattr(found, "lease_seconds", None) if self.lease_seconds is None else None,
            job_timeout_seconds=getattr(found, "job_timeout_seconds", None),
            maintain=self.maintain,
            tags=self.run_tags,
            name=None if self.resource_key == RESOURCE_KEY else self._named(f"drain_{spec.name}"),
            resource_key=self.resource_key,
            asset_key=self._asset(spec).key,
        )(handler)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the asset with its checks, the jobs, the sensors and the resource. Nothing connects.

        Raises:
            InvalidInput: an attribute is not usable; the message names it.
        """
        _check_variable(f"url_env of queue {self.queue!r}", self.url_env)
        consumer = self.get_consumer(context)
        spec, key = consumer.spec, consumer.asset_key
        limits = CheckThresholds(**(self.checks or CheckAttributes()).model_dump())
        observe = build_observe_job(spec, asset_key=key, resource_key=self.resource_key)
        sensor = build_sqlqueue_sensor(
            consumer,
            name=self._named(f"{spec.name}_sensor"),
            settings=self.sensor_settings(),
            thresholds=limits,
            minimum_interval_seconds=self.minimum_interval_seconds,
            default_status=self.default_status,
            observe_job=observe,
        )
        sensors = [helping(sensor, spec, create=self.create, resource_key=self.resource_key)]
        if self.cleanup:
            sensors += build_cleanup_sensors(
                [consumer],
                prefix=f"{self.resource_key}_{spec.name}",
                resource_key=self.resource_key,
                default_status=self.default_status,
            )
        launchpad = build_sqlqueue_launchpad_jobs(
            spec,
            name_prefix=self._named(spec.name),
            verbs=USUAL_VERBS if self.launchpad is None else self.launchpad,
            asset_keys={spec.name: key},
            resource_key=self.resource_key,
        )
        return dg.Definitions(
            assets=[self._asset(spec)] if self.add_asset else None,
            asset_checks=[build_sqlqueue_checks(spec, limits, asset_key=key, resource_key=self.resource_key)],
            jobs=[consumer.job, build_create_job(spec, resource_key=self.resource_key), observe, *launchpad],
            sensors=sensors,
            resources={self.resource_key: shared_resource(self.url_env, self.schema_name)} if self.resource else None,
        )

    def _asset(self, spec: QueueSpec[Any]) -> dg.AssetSpec:
        schema = default_schema() if self.schema_name is None else self.schema_name
        return self.get_asset_spec(QueueAssetData(spec, schema))

    def _named(self, usual: str) -> str:
        return usual if self.resource_key == RESOURCE_KEY else f"{self.resource_key}_{usual}"

    def _as_it_is(self, consumer: QueueConsumer[Any], spec: QueueSpec[Any]) -> QueueConsumer[Any]:
        """Take a consumer of `queue_consumer` unchanged, and refuse settings of the component that differ from its own."""
        mode, batch = self.mode or consumer.mode, consumer.batch if self.batch is None else self.batch
        maintain = consumer.maintain and self.maintain
        given, own = (spec, mode, batch, maintain), (consumer.spec, consumer.mode, consumer.batch, consumer.maintain)
        if given != own or self.transactional or self.run_tags or self.concurrency is not None:
            raise InvalidInput(
                f"the handler of queue {self.queue!r} is a consumer of queue_consumer, and the component has other settings"
                " of queue or job; set them in queue_consumer, or name a plain function as the handler"
            )
        if consumer.resource_key != self.resource_key:
            raise InvalidInput(
                f"the handler of queue {self.queue!r} is a consumer of queue_consumer with the resource"
                f" {consumer.resource_key!r}, where the component's is {self.resource_key!r}; make them agree:"
                " queue_consumer(resource_key=…), or the attribute resource_key"
            )
        key = self._asset(spec).key
        if key != consumer.asset_key:
            raise InvalidInput(
                f"the handler of queue {self.queue!r} is a consumer of queue_consumer, and reports on the asset"
                f" {consumer.asset_key.to_user_string()!r}, where the component's is {key.to_user_string()!r}; make them"
                " agree: queue_consumer(asset_key=…), or the attribute asset"
            )
        return consumer

    def _spec(self, bound: QueueSpec[Any] | None, handler: Any, package: str | None) -> QueueSpec[Any]:
        given = {
            "bucket_count": self.buckets,
            "strategy": self.strategy,
            "lease_seconds": self.lease_seconds,
            "timeout_seconds": self.timeout_seconds,
            "max_attempts": self.max_attempts,
            "backoff": self.backoff and Backoff(**self.backoff.model_dump()),
            "ordered": self.ordered,
            "on_poison": self.on_poison,
            "max_running": self.max_running,
            "max_running_per_key": self.max_running_per_key,
            "rate": self.rate and RateLimit(**self.rate.model_dump()),
            "retention_days": self.retention_days,
        }
        changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        payload = resolve("the payload", self.payload, package) if isinstance(self.payload, str) else self.payload
        if payload is not None and not (isinstance(payload, type) and issubclass(payload, BaseModel)):
            raise InvalidInput(f"the payload of queue {self.queue!r} is {payload!r:.100}; name a pydantic model")
        if bound is None:
            return QueueSpec(self.queue, payload or next(payloads_of(handler), AnyObject), **changed)
        if bound.name != self.queue or payload not in (None, bound.payload):
            raise InvalidInput(
                f"the handler is bound to queue {bound.name!r} with the payload {bound.payload.__name__}, and the component"
                f" says queue {self.queue!r}{'' if payload is None else f' and {payload.__name__}'}; make them agree"
            )
        return dataclasses.replace(bound, **changed)


def shared_resource(url_env: str = URL_VARIABLE, schema_name: str | None = None) -> SqlQueueResource:
    """Return the one resource object of a database and schema: Dagster merges definitions that name a resource only if it
    is the same object. For a project that has components and definitions of its own.

    Args:
        url_env: the name of the environment variable that holds the URL.
        schema_name: the schema that holds the tables; None: `SQLQUEUE_SCHEMA` of the environment, else `sqlqueue`.

    Raises:
        InvalidInput: no environment variable can have that name, such as the URL itself.
    """
    _check_variable("url_env", url_env)
    return _resource(url_env, default_schema() if schema_name is None else schema_name)


def _check_variable(what: str, name: object) -> None:
    # The message does not quote it: it may be a URL with its password.
    if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
        raise InvalidInput(
            f"{what} is no name of an environment variable; put the URL into a variable, and give its name here, such as"
            f" {URL_VARIABLE}"
        )


@cache
def _resource(url_env: str, schema_name: str) -> SqlQueueResource:
    return SqlQueueResource(url=dg.EnvVar(url_env), schema_name=schema_name)
