"""GraphQL of a code location, asked as the UI does, where no database answers."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster_graphql.schema import create_schema

from tests.orchestration.support import NewInstance, code_location


@contextmanager
def asking(directory: Path, code: str, new_instance: NewInstance) -> Iterator[Callable[..., Any]]:
    """Execute queries on the location of this code; each returns its one answer."""
    file = directory / "code_location.py"
    file.write_text(code)
    schema = create_schema()
    with (
        pytest.MonkeyPatch.context() as environment,
        new_instance() as instance,
        WorkspaceProcessContext(instance, code_location(file)) as context,
    ):
        environment.setenv("SQLQUEUE_URL", "postgresql://me@127.0.0.1:1/none")
        request = context.create_request_context()

        def execute(query: str, **variables: Any) -> Any:
            answer = asyncio.run(schema.execute_async(query, variables=variables, context_value=request))
            assert not answer.errors
            (found,) = (answer.data or {}).values()
            return found

        yield execute
