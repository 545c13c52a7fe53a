"""Every verb as every role: who may does it, who may not is told which role it takes, and changes nothing."""

import inspect
import re
from pathlib import Path

import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.followers import Followers, Groups
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.permissions import Role
from dagster_sqlqueue.results import ReplyQueue, Results
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.topics import Topics
from tests.roles import telling
from tests.roles.desk import TABLE, Desk
from tests.roles.support import Staff, url_of

_UNCALLED = {
    "close",
    "stops_key",  # asks nothing of the database
    "matches",  # asks the database about the values it is given, and no table
    "step",  # what the steps of people are made of
}


@pytest.mark.parametrize("attempted", TABLE)
def test_who_may(shared: Staff, role: Role, attempted: str) -> None:
    may, attempt = TABLE[attempted]
    user = shared.user(role)
    desk = Desk(shared.owner, url_of(shared.url, user))
    if role in may:
        attempt(shared.users[role], desk)
        return
    with pytest.raises(AccessRefused) as caught:
        attempt(shared.users[role], desk)
    message = str(caught.value)
    assert isinstance(caught.value, PermissionError)
    assert repr(user) in message
    named = set(re.findall(rf'"{shared.schema}_(\w+?)"', message.partition("have a DBA")[0]))
    assert named >= set(may)
    assert role not in named
    assert may or "own" in message


def test_every_verb_is_attempted() -> None:
    text = "".join(Path(str(file)).read_text(encoding="utf-8") for file in (inspect.getfile(Desk), telling.__file__))
    for kind in (SqlQueue, Topics, Schedules, HumanWork, Followers, Groups, Results, ReplyQueue):
        names = {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}
        missing = {name for name in names - _UNCALLED if not re.search(rf"\.{name}\(", text)}
        assert missing == set(), kind
