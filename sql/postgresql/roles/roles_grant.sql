-- Grant each role its rights on every table, view, sequence and function of the schema, and nothing that is not listed
-- here.
--
-- For each object every role is listed: with what it is granted, or after "nothing:". Columns are listed where a role needs
-- only some of them. To be run by the owner of the schema, in one transaction: other sessions see either the grants from
-- before or those from now.
--
-- Parameters: none. Returns: nothing. Locks: none of the tables, none of the rows.
-- Roles: none but the owner.
REVOKE ALL ON SCHEMA sqlqueue
    FROM sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
REVOKE ALL ON
    sqlqueue.schema_version, sqlqueue.function_set, sqlqueue.queue, sqlqueue.bucket, sqlqueue.job, sqlqueue.job_archive,
    sqlqueue.job_archive_default, sqlqueue.job_replaced, sqlqueue.rate_start, sqlqueue.limit_reservation, sqlqueue.waiter,
    sqlqueue.armed_waiter, sqlqueue.armed_long_ago,
    sqlqueue.stale_write, sqlqueue.worker, sqlqueue.assignment, sqlqueue.transactional_consumer, sqlqueue.consumer_slot,
    sqlqueue.batch,
    sqlqueue.batch_outcome, sqlqueue.batch_pack, sqlqueue.packed_job, sqlqueue.live_job,
    sqlqueue.subscription, sqlqueue.schedule, sqlqueue.human_task, sqlqueue.job_event, sqlqueue.automation_rule,
    sqlqueue.queue_priority, sqlqueue.doubled_priority, sqlqueue.sensitive_field, sqlqueue.queue_declaration,
    sqlqueue.deleted_queue,
    sqlqueue.live_bucket, sqlqueue.lane, sqlqueue.bucket_heads, sqlqueue.stray_job, sqlqueue.job_without_queue,
    sqlqueue.job_all, sqlqueue.queue_stats, sqlqueue.new_job, sqlqueue.replaceable_job, sqlqueue.taken_unique_key,
    sqlqueue.own_follower, sqlqueue.job_replaced_long_ago, sqlqueue.event_of_no_job, sqlqueue.follower,
    sqlqueue.job_group, sqlqueue.group_tally, sqlqueue.job_progress, sqlqueue.reply_queue, sqlqueue.spark_write,
    sqlqueue.staged_attempt, sqlqueue.staged_job, sqlqueue.maintenance,
    sqlqueue.group_long_ago, sqlqueue.wait_long_ago, sqlqueue.staged_long_ago, sqlqueue.staged_job_long_ago,
    sqlqueue.write_long_ago
    FROM PUBLIC, sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
REVOKE ALL ON SEQUENCE sqlqueue.job_order
    FROM PUBLIC, sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
REVOKE ALL ON FUNCTION
    sqlqueue.archive_partition_name(date), sqlqueue.begin_archive_partition(date),
    sqlqueue.attach_archive_partition(date), sqlqueue.make_archive_partition(date),
    sqlqueue.archive_day_is_over(date, text), sqlqueue.drop_archive_partition(date, text), sqlqueue.stats_of_queue(text),
    sqlqueue.notify_followers(uuid, timestamp with time zone, boolean),
    sqlqueue.notify_late_followers(uuid, timestamp with time zone), sqlqueue.refuse_lease_no(), sqlqueue.job_ended(),
    sqlqueue.content_replaced(),
    sqlqueue.acts_for(text), sqlqueue.refuse_group_of_others(uuid, text), sqlqueue.join_group(uuid),
    sqlqueue.close_group(uuid), sqlqueue.members_added(),
    sqlqueue.fold_group_tally(), sqlqueue.keep_queue(text), sqlqueue.keep_queue_of_job(),
    sqlqueue.record_default_priority(), sqlqueue.note_kept_from(), sqlqueue.refuse_queue_with_jobs(),
    sqlqueue.ended_now(uuid),
    sqlqueue.attempts_spent(integer, text, boolean), sqlqueue.is_backoff(double precision[]),
    sqlqueue.put_callbacks(uuid[], text[], smallint[], text[], jsonb[], boolean),
    sqlqueue.uuid_at(timestamp with time zone, text), sqlqueue.promote_keys(text, text[]),
    sqlqueue.keep_live(uuid[], boolean), sqlqueue.known_followers(uuid[]), sqlqueue.bucket_hash(uuid, text),
    sqlqueue.hold_unclaimable(text), sqlqueue.listen_to_ends(), sqlqueue.remove_reply_queue(text, boolean),
    sqlqueue.lock_queue_to_delete(text), sqlqueue.delete_locked_queue(text), sqlqueue.obstacles_to_deletion(text),
    sqlqueue.delete_queue(text, boolean), sqlqueue.begin_beyond_deleted(),
    sqlqueue.renew_reply_queue(text), sqlqueue.settle_batch(uuid, text, text), sqlqueue.sweep_batch(text, double precision), sqlqueue.packs_of(uuid[]),
    sqlqueue.packed_jobs(uuid[]), sqlqueue.packed_ids(uuid[]),
    sqlqueue.pack_batch(uuid, bigint, smallint[], double precision), sqlqueue.unpack_jobs(uuid, uuid[]),
    sqlqueue.put_unpacked(uuid[], uuid[], uuid[], boolean, text), sqlqueue.settle_packs(uuid, text, text),
    sqlqueue.refuse_token(), sqlqueue.refuse_unsettled_batch(),
    sqlqueue.forget_batches(text), sqlqueue.drop_staged(uuid),
    sqlqueue.enqueue_staged(uuid, text, text, bigint, uuid[], bigint), sqlqueue.take_maintenance(text),
    sqlqueue.force_maintenance(text), sqlqueue.trim_archive(text, integer), sqlqueue.trim_archive_of_no_queue(integer),
    sqlqueue.trim_events(text, timestamp with time zone, uuid, bigint, integer), sqlqueue.refuse_old_snapshot(text),
    sqlqueue.refuse_queue_of_packs(),
    sqlqueue.note_maintenance(bigint, boolean, boolean), sqlqueue.keep_archive_day(date), sqlqueue.summarize_archive(),
    sqlqueue.remove_expired_reply_queue(text), sqlqueue.local_day(text, text), sqlqueue.day_of(text),
    sqlqueue.abandon_batch(uuid, text, boolean, boolean), sqlqueue.forget_batch(uuid, boolean),
    sqlqueue.end_leased(uuid[], bigint[], text[], text[], text[], boolean),
    sqlqueue.succeed_leased(uuid[], bigint, boolean), sqlqueue.end_locked(uuid[], text[], text[], text[], text),
    sqlqueue.succeed_locked(uuid[], text), sqlqueue.succeed_batch(uuid),
    sqlqueue.move_batch(uuid, text, smallint[], timestamp with time zone, jsonb, text),
    sqlqueue.bury_spent_jobs(text, smallint[]), sqlqueue.replace_payloads(uuid[], jsonb, boolean),
    sqlqueue.waiter_channel(integer), sqlqueue.listen_as_waiter(),
    sqlqueue.disarm_waiter(text), sqlqueue.arm_waiter(text, smallint[], boolean, double precision),
    sqlqueue.wake_waiter(text, smallint[]), sqlqueue.pass_wake(text, smallint[]), sqlqueue.wake_by_job()
    FROM PUBLIC, sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;

GRANT USAGE ON SCHEMA sqlqueue TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;

-- schema_version: every command checks whether it knows the version of the tables.
GRANT SELECT ON sqlqueue.schema_version TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;

-- function_set: what doctor compares. The functions themselves run with the rights of their caller.
GRANT SELECT ON sqlqueue.function_set TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;

-- queue and bucket: producers and consumers read the settings; operators change them. Consumers write the head hints, and
-- sensors record which buckets a run was requested for.
GRANT SELECT ON sqlqueue.queue TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer;
GRANT SELECT, INSERT, UPDATE ON sqlqueue.queue TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.bucket TO sqlqueue_producer, sqlqueue_observer;
GRANT SELECT, UPDATE (head_hint, swept_at, starts, asked_at) ON sqlqueue.bucket TO sqlqueue_consumer;
GRANT SELECT, INSERT, UPDATE ON sqlqueue.bucket TO sqlqueue_operator;

-- job: a producer writes what a job is, not how it fares; it sees that jobs exist, under which keys and when they are due,
-- and not their content. A consumer writes how jobs fare, ends them by functions, and leaves their content unchanged. An
-- operator decides when and whether they run, and redrives ended ones.
GRANT SELECT (id, queue, bucket, state, available_at, run_at, unique_key, ordering_key, order_no)
    ON sqlqueue.job TO sqlqueue_producer;
GRANT INSERT (
    id, queue, bucket, priority, available_at, run_at, max_attempts, unique_key, unique_until_claim, ordering_key, order_no,
    region, timeout_seconds, backoff, tags, queue_kept, wakes, payload
) ON sqlqueue.job TO sqlqueue_producer, sqlqueue_operator;
GRANT INSERT (lease_no, created_at, error) ON sqlqueue.job TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.job TO sqlqueue_consumer;
GRANT SELECT, DELETE ON sqlqueue.job TO sqlqueue_operator;
GRANT UPDATE (
    state, available_at, lease_no, attempt, alone, started_at, claimed_by, claim_token, batch_id, limited, error
) ON sqlqueue.job TO sqlqueue_consumer;
GRANT UPDATE (state, available_at, run_at, bucket, priority, error, cancel_requested_at, order_no, limited)
    ON sqlqueue.job TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.job TO sqlqueue_observer;
GRANT EXECUTE ON FUNCTION sqlqueue.attempts_spent(integer, text, boolean), sqlqueue.is_backoff(double precision[])
    TO sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
-- nothing on attempts_spent(integer, text, boolean), is_backoff(double precision[]): sqlqueue_producer
-- hold_unclaimable runs as its owner: it holds the jobs that keep a consumer from its claims.
GRANT EXECUTE ON FUNCTION sqlqueue.hold_unclaimable(text) TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on hold_unclaimable(text): sqlqueue_producer, sqlqueue_observer

-- These run as their owner. They end jobs under the given lease, queued jobs, and the jobs of a batch, and archive them
-- unchanged: a consumer neither deletes a job without its row in the archive nor writes a row of a job that never existed.
GRANT EXECUTE ON FUNCTION
    sqlqueue.end_leased(uuid[], bigint[], text[], text[], text[], boolean), sqlqueue.succeed_leased(uuid[], bigint, boolean),
    sqlqueue.end_locked(uuid[], text[], text[], text[], text), sqlqueue.succeed_locked(uuid[], text),
    sqlqueue.succeed_batch(uuid), sqlqueue.move_batch(uuid, text, smallint[], timestamp with time zone, jsonb, text),
    sqlqueue.bury_spent_jobs(text, smallint[])
    TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on end_leased(uuid[], bigint[], text[], text[], text[], boolean): sqlqueue_producer, sqlqueue_observer
-- nothing on succeed_leased(uuid[], bigint, boolean): sqlqueue_producer, sqlqueue_observer
-- nothing on end_locked(uuid[], text[], text[], text[], text): sqlqueue_producer, sqlqueue_observer
-- nothing on succeed_locked(uuid[], text): sqlqueue_producer, sqlqueue_observer
-- nothing on succeed_batch(uuid): sqlqueue_producer, sqlqueue_observer
-- nothing on move_batch(uuid, text, smallint[], timestamp with time zone, jsonb, text): sqlqueue_producer, sqlqueue_observer
-- nothing on bury_spent_jobs(text, smallint[]): sqlqueue_producer, sqlqueue_observer

-- replace_payloads runs as its owner: it changes the payload of jobs that do not run, and of no others.
GRANT EXECUTE ON FUNCTION sqlqueue.replace_payloads(uuid[], jsonb, boolean) TO sqlqueue_operator;
-- nothing on replace_payloads(uuid[], jsonb, boolean): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer

-- promote_keys runs as its owner: it promotes the next job of a key, and changes no other, nor to another moment.
GRANT EXECUTE ON FUNCTION sqlqueue.promote_keys(text, text[]) TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator;
-- nothing on promote_keys(text, text[]): sqlqueue_observer

-- keep_queue runs as its owner: a transaction that enqueues keeps the queue from being deleted meanwhile.
GRANT EXECUTE ON FUNCTION sqlqueue.keep_queue(text) TO sqlqueue_producer, sqlqueue_operator;
-- nothing on keep_queue(text): sqlqueue_consumer, sqlqueue_observer

-- keep_live runs as its owner: it marks jobs as followed, and no caller can remove the mark.
GRANT EXECUTE ON FUNCTION sqlqueue.keep_live(uuid[], boolean) TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator;
-- nothing on keep_live(uuid[], boolean): sqlqueue_observer

-- new_job, replaceable_job: the rows that an enqueue may change.
GRANT SELECT, DELETE ON sqlqueue.new_job TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT (id, queue, unique_key, available_at, ordering_key, order_no) ON sqlqueue.replaceable_job
    TO sqlqueue_producer, sqlqueue_operator;
GRANT UPDATE (payload, priority, run_at, max_attempts, timeout_seconds, backoff, tags) ON sqlqueue.replaceable_job
    TO sqlqueue_producer, sqlqueue_operator;
-- nothing on new_job, replaceable_job: sqlqueue_consumer, sqlqueue_observer

-- taken_unique_key: which unique keys are held. It shows no payload.
GRANT SELECT ON sqlqueue.taken_unique_key
    TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;

-- job_replaced: ids that were sent before, or deleted. They are deleted when a week has passed.
GRANT SELECT (id, merged_into), INSERT (id, merged_into) ON sqlqueue.job_replaced TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT ON sqlqueue.job_replaced TO sqlqueue_observer;
GRANT SELECT, UPDATE (noted_at), DELETE ON sqlqueue.job_replaced_long_ago
    TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator;
-- nothing on job_replaced: sqlqueue_consumer
-- nothing on job_replaced_long_ago: sqlqueue_observer

-- job_order numbers the jobs of a key as they arrive, and as they are brought back.
GRANT USAGE ON SEQUENCE sqlqueue.job_order TO sqlqueue_producer, sqlqueue_operator;
-- nothing on job_order: sqlqueue_consumer, sqlqueue_observer

-- job_archive: a consumer adds to it by the functions that end jobs, and sees how and when jobs ended and by whom, not
-- their content; only operators delete rows, to redrive jobs and to trim. (Locking a row requires the right to change some
-- column of it.) No role may write ended_in: a stream that
-- reads by it would miss the row.
GRANT SELECT (id, queue, finished_at) ON sqlqueue.job_archive TO sqlqueue_producer;
GRANT SELECT (id, queue, state, lease_no, order_no, started_at, finished_at, claimed_by) ON sqlqueue.job_archive
    TO sqlqueue_consumer;
GRANT INSERT (
    id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    claimed_by, batch_id, unique_key, unique_until_claim, ordering_key, order_no, region, timeout_seconds, backoff,
    tags, payload, result, error
) ON sqlqueue.job_archive TO sqlqueue_operator;
GRANT SELECT, UPDATE (region), DELETE ON sqlqueue.job_archive TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.job_archive TO sqlqueue_observer;
GRANT SELECT ON sqlqueue.job_archive_default TO sqlqueue_operator, sqlqueue_observer;
GRANT SELECT (finished_at) ON sqlqueue.job_archive_default TO sqlqueue_consumer;
-- nothing on job_archive_default: sqlqueue_producer

-- rate_start, limit_reservation: what limited queues have granted.
GRANT SELECT, INSERT (queue, starts), DELETE ON sqlqueue.rate_start TO sqlqueue_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.limit_reservation TO sqlqueue_consumer;
GRANT SELECT ON sqlqueue.rate_start, sqlqueue.limit_reservation TO sqlqueue_operator, sqlqueue_observer;
-- nothing on rate_start, limit_reservation: sqlqueue_producer

-- waiter: consumers record that they listen; a transaction that makes jobs due reads whether any does.
GRANT SELECT (queue, expires_at) ON sqlqueue.waiter TO sqlqueue_producer;
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.waiter TO sqlqueue_consumer;
GRANT SELECT, UPDATE (expires_at), DELETE ON sqlqueue.waiter TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.waiter TO sqlqueue_observer;

-- armed_waiter: consumers have themselves woken, and no other session, by functions; jobs delete the rows by their trigger.
-- Maintenance deletes rows that are left.
GRANT SELECT, DELETE ON sqlqueue.armed_long_ago TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT ON sqlqueue.armed_waiter, sqlqueue.armed_long_ago TO sqlqueue_observer;
GRANT EXECUTE ON FUNCTION
    sqlqueue.arm_waiter(text, smallint[], boolean, double precision), sqlqueue.disarm_waiter(text),
    sqlqueue.pass_wake(text, smallint[])
    TO sqlqueue_consumer;
GRANT EXECUTE ON FUNCTION sqlqueue.listen_as_waiter(), sqlqueue.waiter_channel(integer)
    TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
-- nothing on armed_waiter: sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator
-- nothing on armed_long_ago: sqlqueue_producer
-- nothing on wake_waiter(text, smallint[]), wake_by_job(): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on arm_waiter(text, smallint[], boolean, double precision), disarm_waiter(text), pass_wake(text, smallint[]): sqlqueue_producer, sqlqueue_operator, sqlqueue_observer

-- stale_write, worker, assignment, transactional_consumer, consumer_slot: kept by consumers, managers and sensors;
-- operators clean them up.
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.stale_write TO sqlqueue_consumer;
GRANT SELECT, DELETE ON sqlqueue.stale_write TO sqlqueue_operator;
GRANT SELECT, INSERT, UPDATE, DELETE
    ON sqlqueue.worker, sqlqueue.assignment, sqlqueue.transactional_consumer, sqlqueue.consumer_slot TO sqlqueue_consumer;
GRANT SELECT, UPDATE (expires_at), DELETE ON sqlqueue.worker, sqlqueue.consumer_slot TO sqlqueue_operator;
GRANT SELECT, UPDATE (lease_no), DELETE ON sqlqueue.assignment TO sqlqueue_operator;
GRANT SELECT (believed_until), DELETE ON sqlqueue.transactional_consumer TO sqlqueue_operator;
GRANT SELECT
    ON sqlqueue.stale_write, sqlqueue.worker, sqlqueue.assignment, sqlqueue.transactional_consumer, sqlqueue.consumer_slot
    TO sqlqueue_observer;
-- nothing on stale_write, worker, assignment, transactional_consumer, consumer_slot: sqlqueue_producer

-- batch, batch_outcome: the batches that Spark takes and publishes. Maintenance, by operators, gives back by a function
-- what was left behind. A batch keeps its id, to which its packs refer, and the token with which it begins.
GRANT SELECT, INSERT (
    id, key, queue, mode, state, lease_until, owner, attempt, backoff, filter, created_at, sealed_at
), UPDATE (
    queue, mode, state, token, lease_until, owner, attempt, backoff, error, filter, job_count, output, unmoved, sealed_at,
    published_at
) ON sqlqueue.batch TO sqlqueue_consumer;
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.batch_outcome TO sqlqueue_consumer;
GRANT SELECT ON sqlqueue.batch, sqlqueue.batch_outcome TO sqlqueue_operator, sqlqueue_observer;
GRANT EXECUTE ON FUNCTION sqlqueue.settle_batch(uuid, text, text) TO sqlqueue_consumer;
GRANT EXECUTE ON FUNCTION sqlqueue.sweep_batch(text, double precision), sqlqueue.forget_batches(text)
    TO sqlqueue_consumer, sqlqueue_operator;
-- abandon_batch, forget_batch: an operator's decision about a batch, also one that a driver still holds.
GRANT EXECUTE ON FUNCTION sqlqueue.abandon_batch(uuid, text, boolean, boolean), sqlqueue.forget_batch(uuid, boolean)
    TO sqlqueue_operator;
-- nothing on abandon_batch(uuid, text, boolean, boolean), forget_batch(uuid, boolean): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer
-- nothing on batch, batch_outcome: sqlqueue_producer
-- nothing on settle_batch(uuid, text, text): sqlqueue_producer, sqlqueue_operator, sqlqueue_observer
-- nothing on sweep_batch(text, double precision), forget_batches(text): sqlqueue_producer, sqlqueue_observer

-- batch_pack: the jobs of large batches, which are read as live jobs are. The functions run as their owner: a consumer
-- packs jobs into a batch that it has opened, and a decision about a job, or a report of its outcome, unpacks it. A
-- producer sees that an id exists.
GRANT SELECT ON sqlqueue.batch_pack, sqlqueue.packed_job, sqlqueue.live_job
    TO sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
-- nothing on batch_pack, packed_job, live_job: sqlqueue_producer
GRANT EXECUTE ON FUNCTION sqlqueue.packed_ids(uuid[])
    TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
GRANT EXECUTE ON FUNCTION sqlqueue.packed_jobs(uuid[]) TO sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
-- nothing on packed_jobs(uuid[]): sqlqueue_producer
GRANT EXECUTE ON FUNCTION sqlqueue.unpack_jobs(uuid, uuid[]) TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on unpack_jobs(uuid, uuid[]): sqlqueue_producer, sqlqueue_observer
GRANT EXECUTE ON FUNCTION sqlqueue.pack_batch(uuid, bigint, smallint[], double precision) TO sqlqueue_consumer;
-- nothing on pack_batch(uuid, bigint, smallint[], double precision): sqlqueue_producer, sqlqueue_operator, sqlqueue_observer
-- nothing on packs_of(uuid[]): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on put_unpacked(uuid[], uuid[], uuid[], boolean, text), settle_packs(uuid, text, text): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on refuse_token(), refuse_unsettled_batch(), refuse_queue_of_packs(): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer

-- subscription, schedule: operators write them; publishers read the subscriptions. A scheduler is an operator.
GRANT SELECT ON sqlqueue.subscription TO sqlqueue_producer, sqlqueue_observer;
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.subscription, sqlqueue.schedule TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.schedule TO sqlqueue_observer;
-- nothing on subscription: sqlqueue_consumer
-- nothing on schedule: sqlqueue_producer, sqlqueue_consumer

-- human_task, job_event, automation_rule: operators write what people do, and not when. Steps are never changed, and trimmed
-- with their job. A consumer reads whether a job runs by itself.
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.human_task TO sqlqueue_operator;
GRANT SELECT, INSERT (job_id, no, queue, actor, action, reason, details) ON sqlqueue.job_event TO sqlqueue_operator;
GRANT SELECT, DELETE ON sqlqueue.event_of_no_job TO sqlqueue_operator;
GRANT SELECT, INSERT, UPDATE ON sqlqueue.automation_rule TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.job_event, sqlqueue.automation_rule TO sqlqueue_consumer;
GRANT SELECT ON sqlqueue.human_task, sqlqueue.job_event, sqlqueue.automation_rule TO sqlqueue_observer;
-- nothing on human_task: sqlqueue_producer, sqlqueue_consumer
-- nothing on job_event, automation_rule: sqlqueue_producer
-- nothing on event_of_no_job: sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer

-- queue_priority: written by the triggers of queues and jobs; only duplicates are deleted.
GRANT SELECT ON sqlqueue.queue_priority TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
GRANT SELECT, DELETE ON sqlqueue.doubled_priority TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on doubled_priority: sqlqueue_producer, sqlqueue_observer

-- sensitive_field: consumers and operators, which know the models, add names and never remove any.
GRANT SELECT, INSERT ON sqlqueue.sensitive_field TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT ON sqlqueue.sensitive_field TO sqlqueue_observer;
-- nothing on sensitive_field: sqlqueue_producer

-- queue_declaration: consumers record which settings their code declares; those of the queue apply.
GRANT SELECT, INSERT, UPDATE ON sqlqueue.queue_declaration TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT ON sqlqueue.queue_declaration TO sqlqueue_observer;
-- nothing on queue_declaration: sqlqueue_producer

-- follower, job_group, group_tally: a producer registers followers of jobs, and opens groups; it reads neither the
-- notifications of others nor the outcomes. join_group and close_group run as their owner, as does the trigger that counts
-- members: a user fills and closes the groups that it has opened, and an operator all of them. Maintenance takes away
-- members that are no more.
GRANT SELECT (group_id) ON sqlqueue.follower TO sqlqueue_producer;
GRANT SELECT, UPDATE (submitted_id), DELETE ON sqlqueue.own_follower TO sqlqueue_producer, sqlqueue_operator;
GRANT EXECUTE ON FUNCTION sqlqueue.known_followers(uuid[]) TO sqlqueue_producer, sqlqueue_operator, sqlqueue_observer;
-- nothing on own_follower: sqlqueue_consumer, sqlqueue_observer
-- nothing on known_followers(uuid[]): sqlqueue_consumer
GRANT INSERT (
    id, job_id, states, queue, priority, ordering_key, context, group_id, notify
) ON sqlqueue.follower TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT, UPDATE (submitted_id), DELETE ON sqlqueue.follower TO sqlqueue_operator;
GRANT SELECT (id) ON sqlqueue.job_group TO sqlqueue_producer;
GRANT INSERT (id, queue, priority, ordering_key, context) ON sqlqueue.job_group TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT, UPDATE (created_at), DELETE ON sqlqueue.job_group TO sqlqueue_operator;
GRANT EXECUTE ON FUNCTION sqlqueue.join_group(uuid), sqlqueue.close_group(uuid) TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT, INSERT (group_id, members), UPDATE (members) ON sqlqueue.group_tally TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.follower, sqlqueue.job_group, sqlqueue.group_tally TO sqlqueue_observer;
-- nothing on follower, job_group: sqlqueue_consumer
-- nothing on group_tally: sqlqueue_producer, sqlqueue_consumer
-- nothing on join_group(uuid), close_group(uuid): sqlqueue_consumer, sqlqueue_observer
-- nothing on acts_for(text), refuse_group_of_others(uuid, text), members_added(): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer

-- job_progress: consumers record the progress of their jobs; operators clean up too.
GRANT SELECT, INSERT, UPDATE, DELETE ON sqlqueue.job_progress TO sqlqueue_consumer;
GRANT SELECT, DELETE ON sqlqueue.job_progress TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.job_progress TO sqlqueue_observer;
-- nothing on job_progress: sqlqueue_producer

-- reply_queue: operators create and remove reply queues; the consumer of the replies renews them, by a function, and so
-- cannot let them expire.
GRANT SELECT, INSERT, UPDATE ON sqlqueue.reply_queue TO sqlqueue_operator;
GRANT SELECT ON sqlqueue.reply_queue TO sqlqueue_consumer, sqlqueue_observer;
GRANT EXECUTE ON FUNCTION sqlqueue.renew_reply_queue(text) TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on reply_queue: sqlqueue_producer
-- nothing on renew_reply_queue(text): sqlqueue_producer, sqlqueue_observer

-- notify_late_followers runs as its owner, for those who follow a job that has ended already. The triggers call the other
-- functions as their owner.
GRANT EXECUTE ON FUNCTION sqlqueue.notify_late_followers(uuid, timestamp with time zone)
    TO sqlqueue_producer, sqlqueue_operator;
GRANT EXECUTE ON FUNCTION sqlqueue.listen_to_ends()
    TO sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
GRANT EXECUTE ON FUNCTION sqlqueue.remove_reply_queue(text, boolean) TO sqlqueue_operator;
-- bucket_hash: the SQL functions that enqueue call it with the rights of their caller.
GRANT EXECUTE ON FUNCTION sqlqueue.bucket_hash(uuid, text) TO sqlqueue_producer, sqlqueue_operator;
-- nothing on bucket_hash(uuid, text): sqlqueue_consumer, sqlqueue_observer
-- nothing on notify_late_followers(uuid, timestamp with time zone): sqlqueue_consumer, sqlqueue_observer
-- nothing on notify_followers(uuid, timestamp with time zone, boolean): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on remove_reply_queue(text, boolean): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer
-- delete_queue runs as its owner: it deletes only a queue that has no jobs and that nothing refers to.
GRANT EXECUTE ON FUNCTION sqlqueue.delete_queue(text, boolean) TO sqlqueue_operator;
-- nothing on delete_queue(text, boolean): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer
-- nothing on deleted_queue: sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on begin_beyond_deleted(), lock_queue_to_delete(text), delete_locked_queue(text), obstacles_to_deletion(text): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on job_ended(), content_replaced(), ended_now(uuid), refuse_lease_no(), fold_group_tally(), keep_queue_of_job(), record_default_priority(), note_kept_from(), refuse_queue_with_jobs(): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on put_callbacks(uuid[], text[], smallint[], text[], jsonb[], boolean): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on uuid_at(timestamp with time zone, text): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer

-- spark_write, staged_attempt, staged_job: a producer stages jobs and cannot read those of others; operators clean up.
GRANT SELECT ON sqlqueue.spark_write TO sqlqueue_producer, sqlqueue_observer;
GRANT SELECT, UPDATE (repeats), DELETE ON sqlqueue.spark_write TO sqlqueue_operator;
GRANT INSERT (attempt, write_id) ON sqlqueue.staged_attempt TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT, UPDATE (staged_at), DELETE ON sqlqueue.staged_attempt TO sqlqueue_operator;
GRANT INSERT ON sqlqueue.staged_job TO sqlqueue_producer, sqlqueue_operator;
GRANT SELECT (attempt), DELETE ON sqlqueue.staged_job TO sqlqueue_operator;
-- nothing on spark_write: sqlqueue_consumer
-- nothing on staged_attempt, staged_job: sqlqueue_consumer, sqlqueue_observer

-- drop_staged, enqueue_staged run as their owner: on what the caller's user has staged, and on the attempts of one write,
-- whose ids no other caller knows.
GRANT EXECUTE ON FUNCTION
    sqlqueue.drop_staged(uuid), sqlqueue.enqueue_staged(uuid, text, text, bigint, uuid[], bigint)
    TO sqlqueue_producer, sqlqueue_operator;
-- nothing on drop_staged(uuid): sqlqueue_consumer, sqlqueue_observer
-- nothing on enqueue_staged(uuid, text, text, bigint, uuid[], bigint): sqlqueue_consumer, sqlqueue_observer

-- day_of, local_day read no table: readers of the jobs of a day call them.
GRANT EXECUTE ON FUNCTION
    sqlqueue.day_of(text), sqlqueue.local_day(text, text)
    TO sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
-- nothing on day_of(text): sqlqueue_producer
-- nothing on local_day(text, text): sqlqueue_producer

-- The views about lanes and heads show no payload; job_all shows everything.
GRANT SELECT ON sqlqueue.live_bucket, sqlqueue.lane, sqlqueue.bucket_heads, sqlqueue.stray_job, sqlqueue.job_without_queue
    TO sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
GRANT SELECT ON sqlqueue.job_all, sqlqueue.queue_stats TO sqlqueue_operator, sqlqueue_observer;
-- nothing on live_bucket, lane, bucket_heads, stray_job, job_without_queue: sqlqueue_producer
-- nothing on job_all, queue_stats: sqlqueue_producer, sqlqueue_consumer

-- stats_of_queue runs as its owner, for the view queue_stats; the functions about partitions do so for maintenance.
GRANT EXECUTE ON FUNCTION sqlqueue.stats_of_queue(text) TO sqlqueue_operator, sqlqueue_observer;
GRANT EXECUTE ON FUNCTION
    sqlqueue.begin_archive_partition(date), sqlqueue.attach_archive_partition(date), sqlqueue.make_archive_partition(date)
    TO sqlqueue_operator;
GRANT EXECUTE ON FUNCTION
    sqlqueue.archive_day_is_over(date, text), sqlqueue.drop_archive_partition(date, text), sqlqueue.keep_archive_day(date),
    sqlqueue.summarize_archive(), sqlqueue.trim_archive(text, integer), sqlqueue.trim_archive_of_no_queue(integer),
    sqlqueue.trim_events(text, timestamp with time zone, uuid, bigint, integer)
    TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on stats_of_queue(text): sqlqueue_producer, sqlqueue_consumer
-- nothing on begin_archive_partition(date), attach_archive_partition(date): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer
-- nothing on make_archive_partition(date): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer
-- nothing on archive_day_is_over(date, text): sqlqueue_producer, sqlqueue_observer
-- nothing on drop_archive_partition(date, text), keep_archive_day(date): sqlqueue_producer, sqlqueue_observer
-- nothing on summarize_archive(), trim_archive(text, integer), trim_archive_of_no_queue(integer): sqlqueue_producer, sqlqueue_observer
-- nothing on trim_events(text, timestamp with time zone, uuid, bigint, integer): sqlqueue_producer, sqlqueue_observer
-- nothing on refuse_old_snapshot(text): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer
-- nothing on archive_partition_name(date): sqlqueue_producer, sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer

-- maintenance: consumers do it when it is due, and delete only what has expired; operators do it at any time. (Locking a
-- row requires the right to change some column of it.)
GRANT SELECT ON sqlqueue.maintenance TO sqlqueue_consumer, sqlqueue_operator, sqlqueue_observer;
GRANT EXECUTE ON FUNCTION
    sqlqueue.take_maintenance(text), sqlqueue.note_maintenance(bigint, boolean, boolean),
    sqlqueue.remove_expired_reply_queue(text)
    TO sqlqueue_consumer, sqlqueue_operator;
GRANT EXECUTE ON FUNCTION sqlqueue.force_maintenance(text) TO sqlqueue_operator;
GRANT SELECT, DELETE ON sqlqueue.staged_job_long_ago TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT, UPDATE (ended_at), DELETE ON sqlqueue.group_long_ago TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT, UPDATE (created_at), DELETE ON sqlqueue.wait_long_ago TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT, UPDATE (staged_at), DELETE ON sqlqueue.staged_long_ago TO sqlqueue_consumer, sqlqueue_operator;
GRANT SELECT, UPDATE (committed_at), DELETE ON sqlqueue.write_long_ago TO sqlqueue_consumer, sqlqueue_operator;
-- nothing on maintenance: sqlqueue_producer
-- nothing on force_maintenance(text): sqlqueue_producer, sqlqueue_consumer, sqlqueue_observer
-- nothing on take_maintenance(text), note_maintenance(bigint, boolean, boolean): sqlqueue_producer, sqlqueue_observer
-- nothing on remove_expired_reply_queue(text): sqlqueue_producer, sqlqueue_observer
-- nothing on staged_job_long_ago: sqlqueue_producer, sqlqueue_observer
-- nothing on group_long_ago, wait_long_ago, staged_long_ago, write_long_ago: sqlqueue_producer, sqlqueue_observer
