-- Listen for jobs, for as long as the connection lives: on the channel of the session, on which an armed session is
-- notified (waiter_arm), and on that of the schema's name, on which all are. The payload of a notification is a queue's
-- name.
--
-- Parameters: none. Returns: the session's channel. Locks: none.
-- Roles: producer, consumer, operator, observer.
SELECT sqlqueue.listen_as_waiter()
