"""The library on the real PostgreSQL against a queue in pure Python, step by step."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import KINDS, QueueMachine, Server

RUNS = settings(
    max_examples=50,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[Server]:
    server = Server(url, "t_model")
    yield server
    server.close()


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_does_what_the_model_says(server: Server, kind: str) -> None:
    machine = type(f"{kind}_queue", (QueueMachine,), {"server": server, "kind": kind})
    run_state_machine_as_test(machine, settings=RUNS)
