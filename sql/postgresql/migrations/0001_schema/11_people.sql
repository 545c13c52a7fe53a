-- Jobs that people do, the history of each, and the rule for how much of a queue runs by itself.

-- A job that people are to do is held, and has a row here until it ends or is returned. The row decides what may be done
-- next; the steps so far are in job_event, and the revision is the number of the last event.
--
-- One column decides when a task is offered: available_at. It is the moment at which the task was opened, or the one to
-- which it was delayed. A task that is delayed without a date is marked as on hold.
--
-- Nothing here refers to the job's row: its deletion, the most frequent write of all, would have to check here each time.
-- So a task can outlive its job, or the job's being held, and every statement that acts on tasks checks the job too.
CREATE TABLE sqlqueue.human_task (
    job_id       uuid        PRIMARY KEY,
    queue        text        NOT NULL REFERENCES sqlqueue.queue (name),
    stage        text        NOT NULL CHECK (stage IN ('open', 'assigned', 'in_review')),
    assignee     text        CHECK (assignee <> ''),
    done_by      text        CHECK (done_by <> ''),
    result       jsonb,
    review       boolean     NOT NULL,
    four_eyes    boolean     NOT NULL,
    on_hold      boolean     NOT NULL DEFAULT false,
    available_at timestamptz NOT NULL,
    opened_at    timestamptz NOT NULL,
    revision     bigint      NOT NULL CHECK (revision >= 1),
    CHECK ((stage = 'open') = (assignee IS NULL)),
    CHECK ((stage = 'in_review') = (done_by IS NOT NULL)),
    CHECK (review OR NOT four_eyes),
    CHECK (review OR stage <> 'in_review')
) WITH (fillfactor = 80);

-- Serves the taking of the next task; the lists of a queue; and those of a person.
CREATE INDEX human_task_next ON sqlqueue.human_task (queue, available_at, job_id) WHERE stage = 'open' AND NOT on_hold;
CREATE INDEX human_task_stage ON sqlqueue.human_task (queue, stage, available_at, job_id);
CREATE INDEX human_task_assignee ON sqlqueue.human_task (assignee, available_at, job_id) WHERE assignee IS NOT NULL;

-- Serves the search for tasks whose jobs are not held any more, by id: no step moves a task within it.
CREATE INDEX human_task_queue ON sqlqueue.human_task (queue, job_id);

-- Who did what to a job, when and why: append-only. The numbers of a job's events have no gaps, even when it is assigned to
-- people a second time.
CREATE TABLE sqlqueue.job_event (
    job_id  uuid        NOT NULL,
    no      bigint      NOT NULL CHECK (no >= 1),
    queue   text        NOT NULL REFERENCES sqlqueue.queue (name),
    at      timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor   text        NOT NULL CHECK (actor <> ''),
    action  text        NOT NULL,
    reason  text,
    details jsonb       NOT NULL DEFAULT '{}' CHECK (jsonb_typeof(details) = 'object'),
    PRIMARY KEY (job_id, no)
);

-- Serves the check that no event belongs to a queue that is to be deleted.
CREATE INDEX job_event_queue ON sqlqueue.job_event (queue);

-- Serves trimming: the oldest steps of a queue, in order.
CREATE INDEX job_event_oldest ON sqlqueue.job_event (queue, at, job_id, no);

-- Steps of jobs that are neither live nor in the archive: only these may be deleted. OFFSET 0 as in trim_events.
CREATE VIEW sqlqueue.event_of_no_job WITH (security_barrier) AS
SELECT e.job_id, e.no
FROM sqlqueue.job_event AS e
WHERE NOT EXISTS (SELECT FROM sqlqueue.job AS j WHERE j.id = e.job_id OFFSET 0)
  AND NOT EXISTS (SELECT FROM sqlqueue.job_archive AS a WHERE a.id = e.job_id OFFSET 0)
  AND NOT EXISTS (SELECT FROM sqlqueue.packed_ids(ARRAY[e.job_id]));

COMMENT ON VIEW sqlqueue.event_of_no_job IS 'steps of jobs that no longer exist: to be trimmed';

REVOKE ALL ON sqlqueue.event_of_no_job FROM PUBLIC;

-- How much of a queue runs by itself. A queue without a row does so wholly. A job is automatic if the point that follows
-- from its id, from 0 up to 100, lies below the percentage, and its payload does not contain what is always for people.
CREATE TABLE sqlqueue.automation_rule (
    queue             text        PRIMARY KEY REFERENCES sqlqueue.queue (name),
    automatic_percent float8      NOT NULL CHECK (automatic_percent BETWEEN 0 AND 100),
    always_people     jsonb       CHECK (jsonb_typeof(always_people) = 'object'),
    review            boolean     NOT NULL,
    four_eyes         boolean     NOT NULL,
    CHECK (review OR NOT four_eyes)
);

