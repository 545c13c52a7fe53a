-- Topics: what is published to one becomes a job for each subscription that it fits. A topic is there as long as somebody
-- subscribes to it, and has no row of its own.

-- Which messages of a topic become jobs of a queue. Null filters let everything pass.
--
-- A receiver gets one job of each message that fits it. A subscription with mode copy is a receiver by itself; those with
-- mode move that share a group are one receiver together, and each message goes to one of them. The id of a message's job
-- is made of the message's id and the receiver, so that a message that is sent again lands once, whatever has become of
-- the group meanwhile.
--
-- A queue that is subscribed to cannot be deleted.
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

-- Serves the check that nobody subscribes to a queue that is to be deleted.
CREATE INDEX subscription_queue ON sqlqueue.subscription (queue);

