"""`Results`: what became of the jobs of one schema, with the verbs of outcomes and of queues for answers."""

from dagster_sqlqueue.results.outcomes import OutcomeVerbs
from dagster_sqlqueue.results.reply_queue import ReplyVerbs


class Results(OutcomeVerbs, ReplyVerbs):
    """What became of the jobs of one schema. Make one for a process: all of its waits share one connection that listens.

    Args:
        queue: the queues of the schema.
        listen: whether the database notifies waits of an end. If not, or where that is not possible (a pooler in
            transaction mode, a standby), waits poll: after 0.05 seconds, and then less often, up to
            once a second. Those that listen poll at most once a second, and later every five.
    """
