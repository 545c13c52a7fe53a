-- The names of the fields of a queue's payloads whose values are not to be shown, as its model declares them: so that a tool
-- that does not know the model redacts them too. A name holds at any depth of a payload.
CREATE TABLE sqlqueue.sensitive_field (
    queue text NOT NULL REFERENCES sqlqueue.queue (name) ON DELETE CASCADE,
    name  text NOT NULL CHECK (name <> ''),
    PRIMARY KEY (queue, name)
);
