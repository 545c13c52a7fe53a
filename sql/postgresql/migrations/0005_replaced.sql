-- Jobs that carried an id of their producer's and were not inserted, but gave their content to the job that had their
-- unique key: so that the same job, sent again because its commit got no answer, is known. Forgotten after a week.
CREATE TABLE sqlqueue.job_replaced (
    id       uuid        PRIMARY KEY,
    noted_at timestamptz NOT NULL DEFAULT now()
);

CREATE INDEX job_replaced_noted ON sqlqueue.job_replaced (noted_at);
