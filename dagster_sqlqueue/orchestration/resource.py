"""The queue as a Dagster resource."""

import functools
import inspect
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from keyword import iskeyword
from typing import Any, ClassVar

import dagster as dg
from pydantic import ConfigDict, Field, PrivateAttr

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.schema_name import default_schema
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration.code_only import CodeOnlyResource, UnlessVariable, looked_up, looked_up_number
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.sql_queue import check_sql_queue

RESOURCE_KEY = "sqlqueue"
"""The default key of the resource."""

_TICK_CONNECT_SECONDS = 3
_SILENCE_SECONDS = 3
"""How much longer than a statement may take a tick waits for its answer: a server that is there ends it."""
_MOST_CONNECTIONS = 100


class SqlQueueResource(CodeOnlyResource):
    """The queues of one schema of one database, opened and closed for each run and each sensor tick.

    Users of Dagster's launchpad may give a run another configuration. The URL and the schema are no part of it: they are set
    in the code, or in the environment, and no launch can point a run at another database.

    Example:
        `SqlQueueResource(url=dg.EnvVar("SQLQUEUE_URL"))`
    """

    model_config = ConfigDict(hide_input_in_errors=True)

    url: str = Field(
        description="The database: postgresql://user:password@host:5432/database. Pass dg.EnvVar('SQLQUEUE_URL'): the UI"
        " then shows the variable's name only.",
        json_schema_extra={"dagster__is_secret": True},
        repr=False,
    )
    schema_name: str = Field(
        default_factory=default_schema,
        description="The schema that holds the queue's tables; unset: SQLQUEUE_SCHEMA of the environment, else sqlqueue.",
    )
    pool_size: UnlessVariable = Field(
        default=5, ge=1, le=_MOST_CONNECTIONS, description="The most connections that are open at a time."
    )
    connect_timeout_seconds: UnlessVariable = Field(default=5, ge=1, description="How long to wait for a connection.")
    statement_timeout_seconds: float | None = Field(
        default=None,
        gt=0,
        description="The longest that a statement of a run may take; unset: no limit.",
    )
    tick_timeout_seconds: float = Field(
        default=10.0,
        gt=0,
        description="The longest that a statement of a sensor's or schedule's tick may take: a tick that waits delays the"
        " other sensors. A connection on which nothing has arrived for 3 s more is closed.",
    )

    code_only: ClassVar[frozenset[str]] = frozenset({"url", "schema_name"})

    _queue: SqlQueue | None = PrivateAttr(default=None)

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["SqlQueueResource"]:
        """Open the pool, which connects with the first statement, and close it at the end. `setup_for_execution` and
        `teardown_after_execution` of a subclass are called while it is open.
        """
        if context.run:
            opened = self._open(
                f"dagster-sqlqueue/{context.run.run_id}", self.connect_timeout_seconds, self.statement_timeout_seconds
            )
        else:
            connect = min(self.connect_timeout_seconds, _TICK_CONNECT_SECONDS)
            opened = self._open(
                "dagster-sqlqueue/tick",
                connect,
                self.tick_timeout_seconds,
                answer_seconds=self.tick_timeout_seconds + _SILENCE_SECONDS,
            )
        with opened as queue:
            self._queue = queue
            try:
                with super().yield_for_execution(context) as itself:
                    yield itself
            finally:
                self._queue = None

    @contextmanager
    def open(self, application_name: str = "dagster-sqlqueue") -> Iterator[SqlQueue]:
        """Open the queues outside of a run, for scripts and tests."""
        with self._open(application_name, self.connect_timeout_seconds, self.statement_timeout_seconds) as queue:
            yield queue

    @property
    def queue(self) -> SqlQueue:
        """The open queues, inside a run, a tick, or a context of `dagster.build_op_context`.

        Raises:
            InvalidInput: the resource is not open.
        """
        if self._queue is None:
            raise InvalidInput(
                "the resource is not open: use it inside a run or tick, or with: with resource.open() as queue"
            )
        return self._queue

    def _open(
        self,
        application_name: str,
        connect_timeout: int,
        statement_timeout: float | None,
        answer_seconds: float | None = None,
    ) -> SqlQueue:
        pool_size = looked_up_number(self.pool_size, "the most connections that are open at a time")
        connect_timeout = looked_up_number(connect_timeout, "the seconds to wait for a connection")
        if not 1 <= pool_size <= _MOST_CONNECTIONS or connect_timeout < 1:
            raise InvalidInput(
                f"pool_size is {pool_size} and connect_timeout_seconds {connect_timeout}; give 1 to {_MOST_CONNECTIONS}"
                " connections, and at least 1 second"
            )
        database = Database(
            looked_up(self.url, "the database's URL"),
            schema=looked_up(self.schema_name, "the schema of the queue's tables"),
            pool_size=pool_size,
            application_name=application_name,
            connect_timeout=connect_timeout,
            statement_timeout=statement_timeout,
            answer_seconds=answer_seconds,
        )
        return SqlQueue(database)


def check_resource(resource: object) -> None:
    """Raise an error if what was given as the resource of the queues is none, such as the database's URL.

    Raises:
        InvalidInput: it is none; None is that of other definitions. The message does not quote it.
    """
    if resource is not None and not isinstance(resource, SqlQueueResource):
        raise InvalidInput(
            f"resource is a {type(resource).__name__}; give a SqlQueueResource, such as"
            " SqlQueueResource(url=dg.EnvVar('SQLQUEUE_URL'))"
        )


def check_queues(queue: object) -> None:
    """Raise an error if what was given as the queues is something else, such as the resource or the database's URL.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(queue, SqlQueueResource):
        raise InvalidInput("the queue is a SqlQueueResource; give what its attribute queue is in a run or tick")
    check_sql_queue(queue)


def check_resource_key(key: object) -> None:
    """Raise an error if no resource can have this key: functions for Dagster take resources as parameters of their keys.

    Raises:
        InvalidInput: none can.
    """
    if not isinstance(key, str) or not key.isidentifier() or iskeyword(key):
        raise InvalidInput(
            f"resource_key is {key!r:.100}; give letters, digits and underscores, a letter first, and no keyword of"
            " Python's, such as 'sqlqueue'"
        )


def under_key(key: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let the parameter `sqlqueue` of a function for Dagster take the resource of another key.

    Raises:
        InvalidInput: no resource can have the key.
    """
    check_resource_key(key)

    def renamed(function: Callable[..., Any]) -> Callable[..., Any]:
        if key == RESOURCE_KEY:
            return function
        signature = inspect.signature(function)
        parameters = [
            one.replace(name=key) if name == RESOURCE_KEY else one for name, one in signature.parameters.items()
        ]

        @functools.wraps(function)
        def called(*given: Any, **named: Any) -> Any:
            return function(*given, **{RESOURCE_KEY if name == key else name: one for name, one in named.items()})

        # Without its return annotation: a generator function becomes a function that returns a generator.
        empty = inspect.Signature.empty
        called.__signature__ = signature.replace(parameters=parameters, return_annotation=empty)  # type: ignore[attr-defined]
        hints = {name: hint for name, hint in typing.get_type_hints(function).items() if name != "return"}
        called.__annotations__ = {key if name == RESOURCE_KEY else name: hint for name, hint in hints.items()}
        return called

    return renamed
