"""What the verbs of a service share: the queues that it is built on."""

from dagster_sqlqueue.queue.sql_queue import SqlQueue, check_sql_queue


class ServiceVerbs:
    """The base of the classes of verbs of a service, which are siblings: none of them knows another one.

    Args:
        queue: the queues of the schema.

    Raises:
        InvalidInput: this is no `SqlQueue`.

    Attributes:
        queue: the queues of the schema.
        database: where they are.
    """

    def __init__(self, queue: SqlQueue) -> None:
        check_sql_queue(queue)
        self.queue = queue
        self.database = queue.database
