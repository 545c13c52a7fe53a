-- Hold the jobs of a queue that no claim can take, with the reason: after an error that one of them caused.
--
-- Parameters: queue text. Returns: one row: how many jobs are held now that were not.
-- Locks: these jobs; those that others have locked are skipped. Guards: I8: no row keeps a consumer from the others.
-- Roles: consumer, operator.
SELECT sqlqueue.hold_unclaimable(:queue)
