"""Every statement has its plan looked at by a test of this folder, or is said here why it needs none."""

import ast
from pathlib import Path

from dagster_sqlqueue.db import statements

WITHOUT: dict[str, str] = {
    "removed a queue at a time, by a function that reply_queue_remove calls as well": "reply_queue_expire",
    "one or a few rows by the primary key of a table that has a row a queue, bucket, rule or reply queue": """
        buckets_asked buckets_served buckets_unserved count_stale create_queue declaration_note enqueue_terms head_hints
        pause queue_lock queue_steady rebucket reply_queue_put reply_queue_renew resume set_region
    """,
    "one or a few rows by the primary key of a table that has a row a worker, waiter, slot or grant": """
        register_demand slot_acquire slot_extend slot_forget slot_release slot_widen slots transactional_leave
        transactional_note waiter_leave waiter_notify waiter_register wanting_workers withdraw_worker
    """,
    "the one row of its table": "doctor_maintenance maintenance_due maintenance_force maintenance_note maintenance_take",
    "one row put under its primary key": "group_open schedule_put subscribe unsubscribe",
    "the whole of a small table, for people": """
        batch_list doctor_batches doctor_declarations doctor_schedules schedules sensitive_add sensitive_names subscriptions
    """,
    "locks, settings, savepoints, listening and snapshots: no table": """
        backend ended_listen filter_matches isolation key_try key_wait limit_lock merge_again merge_begin merge_end
        migration_lock migration_patience slot_lock snapshot spark_export_snapshot spark_keep_archive spark_keep_live
        transaction_settings waiter_listen open_writers batch_patience
    """,
    "the catalog, and what the server says of itself": """
        doctor_autovacuum doctor_collation doctor_indexes doctor_job_table doctor_pins doctor_server function_set
        function_set_note migration_blockers migration_index migration_table prepared
        prepare_schema record_version roles_grant roles_granted roles_make roles_there spark_output_table
        schema_strangers spark_partitions_gone spark_server spark_stage_tables versions
    """,
    "COPY: what comes is put in": "enqueue_copy stage_copy",
    "functions about partitions whose statements are made as they run": """
        archive_day_attach archive_day_begin archive_day_drop archive_day_keep archive_summarize
    """,
    "every due job of a queue, once for each error that one of them caused, by a function": "hold_unclaimable",
    "a call of a function that runs another statement, whose plan is looked at": """
        bury_spent_jobs move_batch succeed_batch
    """,
    "one call a job of a function that the trigger calls as well, and whose statements are looked at there": """
        notify_followers
    """,
}


def _files() -> set[str]:
    return set(statements.names())


def _named() -> set[str]:
    """Whatever is a text in one of the other tests."""
    modules = [file for file in Path(__file__).parent.glob("*.py") if file != Path(__file__)]
    nodes = (node for file in modules for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_statement_is_looked_at_or_needs_it_not() -> None:
    without = {name for names in WITHOUT.values() for name in names.split()}
    assert _files() - _named() - without == set()
    assert without - _files() == set()
    assert without & _named() == set()
