"""`Followers`: the followers of jobs in one schema, with the verbs that submit jobs with them and attach them to jobs."""

from dagster_sqlqueue.followers.attachments import AttachmentVerbs
from dagster_sqlqueue.followers.submissions import SubmissionVerbs


class Followers(SubmissionVerbs, AttachmentVerbs):
    """Enqueue jobs with callbacks, merge equal jobs, and follow jobs.

    Args:
        queue: the queues of the schema.
    """
