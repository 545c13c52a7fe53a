-- Room under the limits of a queue that a consumer has been promised for its next claims. It counts like leases and starts
-- until claims use it up, or until it expires: a consumer that dies in between keeps nobody waiting for longer than that.
CREATE TABLE sqlqueue.limit_reservation (
    id         uuid        PRIMARY KEY,
    queue      text        NOT NULL REFERENCES sqlqueue.queue (name),
    jobs       integer     NOT NULL CHECK (jobs >= 0),
    expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE INDEX limit_reservation_queue ON sqlqueue.limit_reservation (queue);
