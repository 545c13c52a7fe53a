"""Being told how a job ended: callbacks, merged jobs whose submitters are all told, groups of jobs that are told once."""

from dagster_sqlqueue.followers.model import Callback as Callback
from dagster_sqlqueue.followers.model import GroupEnded as GroupEnded
from dagster_sqlqueue.followers.model import JobEnded as JobEnded
from dagster_sqlqueue.followers.verbs import Followers as Followers
