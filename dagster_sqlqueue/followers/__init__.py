"""Notify the ends of jobs: callbacks, merged jobs whose submitters are all notified, groups that are notified once."""

from typing import TYPE_CHECKING

from dagster_sqlqueue._faces import lazy

if TYPE_CHECKING:
    from dagster_sqlqueue.followers.attachments import Follower as Follower
    from dagster_sqlqueue.followers.followers import Followers as Followers
    from dagster_sqlqueue.followers.groups import Group as Group
    from dagster_sqlqueue.followers.groups import Groups as Groups
    from dagster_sqlqueue.followers.groups import Member as Member
    from dagster_sqlqueue.followers.insert import Submitted as Submitted
    from dagster_sqlqueue.followers.insert import SubmittedMany as SubmittedMany
    from dagster_sqlqueue.followers.model import Callback as Callback
    from dagster_sqlqueue.followers.model import GroupEnded as GroupEnded
    from dagster_sqlqueue.followers.model import JobEnded as JobEnded
else:
    # The help of the command line needs the models alone, and no driver.
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "attachments": ["Follower"],
            "followers": ["Followers"],
            "groups": ["Group", "Groups", "Member"],
            "insert": ["Submitted", "SubmittedMany"],
            "model": ["Callback", "GroupEnded", "JobEnded"],
        },
    )

__all__ = [
    "Callback",
    "Follower",
    "Followers",
    "Group",
    "GroupEnded",
    "Groups",
    "JobEnded",
    "Member",
    "Submitted",
    "SubmittedMany",
]
