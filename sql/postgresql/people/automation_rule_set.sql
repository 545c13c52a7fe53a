-- Set the automation rule of a queue.
--
-- Parameters: queue text; automatic_percent float8; always_people text (a JSON object; null: nothing); review, four_eyes
--   boolean. Returns: the rule as `automation_rule` does. No row: the queue does not exist.
-- Locks: the rule's row; the queue's against being deleted.
-- Roles: operator.
INSERT INTO sqlqueue.automation_rule AS r (queue, automatic_percent, always_people, review, four_eyes)
SELECT
    found.name, CAST(:automatic_percent AS float8), CAST(CAST(:always_people AS text) AS jsonb),
    CAST(:review AS boolean), CAST(:four_eyes AS boolean)
FROM (SELECT q.name FROM sqlqueue.queue AS q WHERE q.name = :queue FOR KEY SHARE) AS found
ON CONFLICT (queue) DO UPDATE
SET automatic_percent = EXCLUDED.automatic_percent,
    always_people = EXCLUDED.always_people,
    review = EXCLUDED.review,
    four_eyes = EXCLUDED.four_eyes
RETURNING r.queue, r.automatic_percent, CAST(r.always_people AS text) AS always_people, r.review, r.four_eyes
