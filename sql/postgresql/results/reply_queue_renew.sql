-- Renew a reply queue that is in use: its time begins anew.
--
-- Parameters: queue text. Returns: the queue; no row: it was removed. Locks: its row.
-- Roles: consumer, operator.
SELECT renewed.queue FROM sqlqueue.renew_reply_queue(CAST(:queue AS text)) AS renewed (queue)
