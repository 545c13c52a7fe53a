"""Which role may run which statement, for the message to somebody who may not. What a role may do is granted by
`roles_grant.sql`; a test runs every statement as every role and compares. No I/O.
"""

import enum
from collections.abc import Sequence
from typing import Final

from dagster_sqlqueue.errors import AccessRefused


class Role(enum.StrEnum):
    """What a user of a schema is there for."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    OPERATOR = "operator"
    OBSERVER = "observer"


def role_name(schema: str, role: str) -> str:
    """The name that a schema's role has in the whole server."""
    return f"{schema}_{role}"


_WHO: Final = {
    "producer consumer operator observer": """
        archive_day_ahead batch_patience buckets_asked clock doctor_autovacuum doctor_collation doctor_indexes
        doctor_job_table doctor_overdue doctor_pins doctor_server ended_listen enqueue_terms filter_matches foreign_ids
        function_set head_hints isolation key_try key_turns key_wait keys_in_line leases_left limit_lock maintenance_lock
        maintenance_unlock merge_again merge_begin merge_end merge_into migration_lock migration_unlock
        plan_settings queues replace_keys roles_granted roles_there slot_lock snapshot spark_bounds spark_days
        spark_export_snapshot spark_output_table spark_partitions_gone spark_server spark_slices spark_stage_tables
        stuck_keys versions
        waiter_listen waiter_notify writers
    """,
    "producer consumer operator": """
        key_promote lock_live merge_lock
    """,
    "producer operator observer": """
        group_known known_ids submitted subscriptions write_known
    """,
    "consumer operator observer": """
        archive_counts automation_of_job automation_rule batch_buckets batch_count batch_holder batch_jobs batch_last
        batch_members batch_outcomes deadlines_missed depth doctor_queues doctor_strays due_days explain
        finished_under granted heads job_history leased leases list_executable live_by_day live_rows marked_by_token
        open_days peek reply_queues_over scan_fitting select_live sensitive_names slots spark_batch_buckets
        spark_batches_over spark_keep_live spark_live_buckets tasks_of_rule whereabouts
    """,
    "producer operator": """
        enqueue enqueue_copy enqueue_many enqueue_replace follow follow_ended follow_sent forget_finished group_close
        group_join group_open merge_note publish stage_attempt stage_copy tell_ended unfollow write_commit write_drop
    """,
    "consumer operator": """
        batch_move batch_succeed batch_sweep buckets_served bury_spent cancel_waiting
        complete_held end_leases finish finish_locked heartbeat
        hold_queued hold_unclaimable lock_alone lock_leased note_sweep pick_fanout pick_fifo pick_ids pick_round_robin
        reply_queue_renew sensitive_add slot_extend slot_release succeed succeed_locked waiter_leave wanting_workers
        withdraw_worker
    """,
    "operator observer": """
        archive_by_day archive_day_figures archive_days_missing archived_rows daily_accounts dead_letters
        doctor_archive doctor_schedules followers_of group
        group_members groups keys_of_ended outcomes queue_stats queue_stats_all schedule schedule_wait schedules
        select_archived select_dead spark_keep_archive stream_cut stream_now stream_slices stream_window tasks_by_id
        tasks_missing tasks_of_operator tasks_of_stage
    """,
    "consumer": """
        ask_for_jobs batch_close batch_extend batch_find batch_hold batch_lease_reported
        batch_open batch_outcome_put batch_publish batch_published batch_recover batch_renew batch_reopen batch_report
        batch_seal batch_sealed batch_settle batch_to_lease batch_tried batch_untried begin_alone claim_limited
        claim_reserved claim_round_robin count_stale grant grant_assign hand_over hold limit_allowance limit_reserve
        mark_token park progress rate_note requeue return_locked slot_acquire take_assigned transactional_leave
        transactional_note transactional_suspects waiter_register
    """,
    "operator": """
        archive_day_attach archive_day_begin archive_day_drop archive_days_over archive_trim automation_rule_set
        cancel_running create_queue delay event_trim forget_expired forget_groups forget_progress forget_staged
        forget_waits forget_writes move_strays pause queue_lock queue_steady rebucket redrive release_held reply_queue_put
        reply_queue_remove reprioritise resume schedule_pause schedule_put schedule_remove schedule_resume
        schedules_due schedules_move set_region settle_turns subscribe task_end task_lock task_open task_step
        task_take tasks_withdraw tell_left unsubscribe
    """,
    "": """
        function_set_note prepare_schema record_version roles_grant roles_make
    """,
}
"""By the roles that may, the statements; those of nobody are the owner's alone."""

MAY: Final = {
    name: tuple(Role(role) for role in roles.split()) for roles, names in _WHO.items() for name in names.split()
}
"""By statement, the roles that may run it."""


_LEAST_FIRST = (Role.OBSERVER, Role.PRODUCER, Role.CONSUMER, Role.OPERATOR)


def roles_for(names: Sequence[str]) -> list[Role]:
    """The roles that may run every one of these statements, the one to be granted first."""
    return [role for role in _LEAST_FIRST if all(role in MAY.get(name, ()) for name in names)]


def refusal(schema: str, names: Sequence[str], user: str, reason: str) -> AccessRefused:
    """The error for somebody whom the server refused one of these statements.

    Args:
        schema: where.
        names: of the SQL files.
        user: who is logged in.
        reason: the server's words.
    """
    first = reason.strip().splitlines()[0] if reason.strip() else "permission denied"
    wanted = [f'"{role_name(schema, role)}"' for role in roles_for(names)]
    if wanted:
        one = len(wanted) == 1
        cure = (
            f"it takes {'the role' if one else 'one of the roles'} {', '.join(wanted)}: have a DBA run GRANT"
            f' {wanted[0] if one else "…"} TO "{user}" (sqlqueue init --roles makes the roles; docs/roles.md tells them'
            " apart)"
        )
    else:
        cure = "it takes the owner of the schema, or to make it a user who may CREATE in the database"
    return AccessRefused(f"user {user!r} may not do that in schema {schema!r} ({first}); {cure}")
