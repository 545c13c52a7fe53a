-- Serialise the ticks that reserve slots of a sensor on a queue.
--
-- Parameters: queue, sensor text. Locks: an advisory lock of the two, until the transaction ends: slot_acquire after it sees
--   every slot that was reserved before.
-- Roles: producer, consumer, operator, observer.
SELECT pg_advisory_xact_lock(hashtext('sqlqueue' || '/' || :queue || '/' || :sensor), -2)
