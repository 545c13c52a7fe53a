-- Topics: a message published to one becomes a job for each subscription that it matches. A topic exists as long as it has
-- a subscription, and has no row of its own.

-- Which messages of a topic become jobs of a queue. A null filter matches everything.
--
-- A receiver gets one job for each message that matches. A subscription with mode copy is a receiver by itself; those with
-- mode move that share a group are one receiver together, and each message goes to one of them. The id of a message's job
-- is derived from the message's id and the receiver, so that a message that is sent again is inserted once, whatever has
-- become of the group meanwhile.
--
-- A queue with subscriptions cannot be deleted.
CREATE TABLE sqlqueue.subscription (
    topic         text        NOT NULL CHECK (topic ~ '^[A-Za-z][A-Za-z0-9_.-]{0,199}$'),
    name          text        NOT NULL CHECK (name ~ '^[A-Za-z][A-Za-z0-9_.-]{0,199}$'),
    queue         text        NOT NULL REFERENCES sqlqueue.queue (name),
    mode          text        NOT NULL CHECK (mode IN ('copy', 'move')),
    move_group    text        CHECK (move_group ~ '^[A-Za-z][A-Za-z0-9_.-]{0,199}$'),
    payload       jsonb       CHECK (jsonb_typeof(payload) = 'object'),
    tags          text[],
    priority      smallint    CHECK (priority BETWEEN 0 AND 9),
    delay_seconds float8      NOT NULL CHECK (delay_seconds >= 0),
    created_at    timestamptz NOT NULL DEFAULT now(),
    receiver      text        NOT NULL GENERATED ALWAYS AS (
        CASE mode WHEN 'move' THEN 'move:' || COALESCE(move_group, '') ELSE 'copy:' || name END
    ) STORED,
    PRIMARY KEY (topic, name),
    CHECK (mode = 'move' OR move_group IS NULL)
);

-- Serves the check that a queue to be deleted has no subscriptions.
CREATE INDEX subscription_queue ON sqlqueue.subscription (queue);

