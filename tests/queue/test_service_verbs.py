"""What is built on a `SqlQueue` is given one."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.followers import Followers, Groups
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.results import Results
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.topics import Topics
from tests.support import Work


def consumer(queue: Any) -> object:
    return Consumer(queue, QueueSpec("work", Work), lambda job: None)


@pytest.mark.parametrize("build", [consumer, Topics, Followers, Groups, Results, Schedules, HumanWork])
def test_what_is_no_sql_queue_is_refused(queue: SqlQueue, url: str, build: Callable[[Any], object]) -> None:
    for given in (url, queue.database, QueueSpec("work", Work), None):
        message = f"the queue is a {type(given).__name__}; give a SqlQueue, such as SqlQueue(url)"
        with pytest.raises(InvalidInput, match=re.escape(message)):
            build(given)
    build(queue)
