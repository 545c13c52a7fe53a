-- Listen on the schema's channel, for as long as the connection lives. The payload of a notification is a queue's name.
--
-- Parameters: none. Returns: nothing. Locks: none.
-- Roles: producer, consumer, operator, observer.
LISTEN sqlqueue;
