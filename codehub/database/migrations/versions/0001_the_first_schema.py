"""the first schema"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


# Payloads are ids only: NOTIFY allows less than 8,000 bytes, and any notification may be lost.
FUNCTIONS = (
    """
    CREATE FUNCTION tell_workspace() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        who text := json_build_object('id', NEW.id, 'user_id', NEW.owner_id)::text;
        made boolean := TG_OP = 'INSERT';
    BEGIN
        IF made OR (NEW.phase, NEW.operation, NEW.desired_state, NEW.error_reason, NEW.error_message,
                    NEW.name, NEW.description, NEW.memo, NEW.progress, NEW.keep_until, NEW.last_access_at,
                    NEW.standby_ttl_seconds, NEW.archive_ttl_seconds, NEW.archive_key, NEW.deleted_at, NEW.purged_at)
            IS DISTINCT FROM
                   (OLD.phase, OLD.operation, OLD.desired_state, OLD.error_reason, OLD.error_message,
                    OLD.name, OLD.description, OLD.memo, OLD.progress, OLD.keep_until, OLD.last_access_at,
                    OLD.standby_ttl_seconds, OLD.archive_ttl_seconds, OLD.archive_key, OLD.deleted_at, OLD.purged_at)
        THEN
            PERFORM pg_notify('ws_sse', who);
        END IF;
        IF made OR (NEW.desired_state, NEW.request) IS DISTINCT FROM (OLD.desired_state, OLD.request) THEN
            PERFORM pg_notify('ws_wake', who);
        END IF;
        IF NOT made AND OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL THEN
            PERFORM pg_notify('ws_deleted', who);
        END IF;
        IF made OR (NEW.phase, NEW.operation, NEW.upstream, NEW.deleted_at, NEW.owner_id)
            IS DISTINCT FROM (OLD.phase, OLD.operation, OLD.upstream, OLD.deleted_at, OLD.owner_id)
        THEN
            PERFORM pg_notify('route_changed', who);
        END IF;
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION tell_session_ended() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('session_ended',
            json_build_object('id_hash', encode(OLD.id_hash, 'hex'), 'user_id', OLD.user_id)::text);
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION tell_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('user_changed', json_build_object('id', NEW.id)::text);
        RETURN NULL;
    END $$
    """,
)
TRIGGERS = (
    "CREATE TRIGGER tell_workspace AFTER INSERT OR UPDATE ON workspaces "
    "FOR EACH ROW EXECUTE FUNCTION tell_workspace()",
    "CREATE TRIGGER tell_session_ended AFTER DELETE ON sessions "
    "FOR EACH ROW EXECUTE FUNCTION tell_session_ended()",
    "CREATE TRIGGER tell_user_changed AFTER UPDATE ON users "
    "FOR EACH ROW EXECUTE FUNCTION tell_user_changed()",
)


def upgrade() -> None:
    op.create_table(
        "gc_orphans",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("first_seen_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_gc_orphans")),
    )
    op.create_table(
        "installation",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("cookie_key", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("ck_installation_one_row")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("pk_installation")),
    )
    op.create_table(
        "leadership",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("backend_pid", sa.Integer(), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("singleton", name=op.f("ck_leadership_one_row")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("pk_leadership")),
    )
    op.create_table(
        "login_failures",
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("last_failed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("locked_until", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_login_failures")),
    )
    op.create_table(
        "users",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("username", sa.Text(), nullable=False),
        sa.Column("password_hash", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("role IN ('user', 'admin')", name=op.f("ck_users_role_known")),
        sa.CheckConstraint(
            "username = lower(username) AND username <> ''", name=op.f("ck_users_username_lower")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_users")),
    )
    op.create_index(
        "uq_users_username",
        "users",
        ["username"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "sessions",
        sa.Column("id_hash", sa.LargeBinary(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_sessions_user_id")),
        sa.PrimaryKeyConstraint("id_hash", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)
    op.create_index(op.f("ix_sessions_user_id"), "sessions", ["user_id"], unique=False)
    op.create_table(
        "workspaces",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("owner_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("memo", sa.Text(), server_default="", nullable=False),
        sa.Column("image_ref", sa.Text(), nullable=False),
        sa.Column("instance_backend", sa.Text(), nullable=False),
        sa.Column("storage_backend", sa.Text(), nullable=False),
        sa.Column("home_store_key", sa.Text(), nullable=False),
        sa.Column("standby_ttl_seconds", sa.Integer(), nullable=True),
        sa.Column("archive_ttl_seconds", sa.Integer(), nullable=True),
        sa.Column("desired_state", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("purged_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("keep_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_access_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("request", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("conditions", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("observed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("phase_changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("operation", sa.Text(), server_default="NONE", nullable=False),
        sa.Column("op_id", sa.Text(), nullable=True),
        sa.Column("op_started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("progress", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("archive_op_id", sa.Text(), nullable=True),
        sa.Column("archive_key", sa.Text(), nullable=True),
        sa.Column("upstream", sa.Text(), nullable=True),
        sa.Column("error_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error_reason", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("next_retry_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("home_ctx", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint(
            "(desired_state = 'DELETED') = (deleted_at IS NOT NULL)",
            name=op.f("ck_workspaces_deleted_both_ways"),
        ),
        sa.CheckConstraint(
            "(operation = 'NONE') = (op_id IS NULL) AND (operation = 'NONE') = (op_started_at IS NULL)",
            name=op.f("ck_workspaces_operation_has_op_id"),
        ),
        sa.CheckConstraint(
            "desired_state IN ('PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING', 'DELETED')",
            name=op.f("ck_workspaces_desired_state_known"),
        ),
        sa.CheckConstraint(
            "error_reason IN ('Timeout', 'DataLost', 'ImagePullFailed', 'ContainerWithoutVolume', 'ArchiveCorrupted', 'ActionFailed', 'Unreachable', 'RetryExceeded')",
            name=op.f("ck_workspaces_error_reason_known"),
        ),
        sa.CheckConstraint(
            "operation IN ('NONE', 'PROVISIONING', 'CREATE_EMPTY_ARCHIVE', 'RESTORING', 'STARTING', 'STOPPING', 'ARCHIVING', 'DELETING')",
            name=op.f("ck_workspaces_operation_known"),
        ),
        sa.CheckConstraint(
            "operation NOT IN ('ARCHIVING', 'CREATE_EMPTY_ARCHIVE') OR archive_op_id IS NOT NULL",
            name=op.f("ck_workspaces_archiving_has_archive_op_id"),
        ),
        sa.CheckConstraint(
            "phase <> 'ERROR' OR operation = 'NONE'", name=op.f("ck_workspaces_error_has_no_operation")
        ),
        sa.CheckConstraint(
            "phase IN ('PENDING', 'ARCHIVED', 'STANDBY', 'RUNNING', 'ERROR', 'DELETING', 'DELETED')",
            name=op.f("ck_workspaces_phase_known"),
        ),
        sa.CheckConstraint(
            "purged_at IS NULL OR operation <> 'RESTORING'", name=op.f("ck_workspaces_purged_is_not_restored")
        ),
        sa.CheckConstraint(
            "upstream IS NULL OR upstream ~ '^(unix:/|tcp:)'", name=op.f("ck_workspaces_upstream_form")
        ),
        sa.CheckConstraint("error_count >= 0", name=op.f("ck_workspaces_error_count_positive")),
        sa.CheckConstraint(
            "purged_at IS NULL OR deleted_at IS NOT NULL", name=op.f("ck_workspaces_purged_is_deleted")
        ),
        sa.CheckConstraint(
            "standby_ttl_seconds >= 0 AND archive_ttl_seconds >= 0",
            name=op.f("ck_workspaces_ttl_not_negative"),
        ),
        sa.ForeignKeyConstraint(["owner_id"], ["users.id"], name=op.f("fk_workspaces_owner_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workspaces")),
        sa.UniqueConstraint("home_store_key", name=op.f("uq_workspaces_home_store_key")),
        sa.UniqueConstraint("number", name=op.f("uq_workspaces_number")),
    )
    op.create_index(
        "ix_workspaces_active",
        "workspaces",
        ["id"],
        unique=False,
        postgresql_where=sa.text("operation <> 'NONE' OR request IS NOT NULL"),
    )
    op.create_index(
        "ix_workspaces_owner",
        "workspaces",
        ["owner_id", "created_at"],
        unique=False,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_workspaces_trash",
        "workspaces",
        ["owner_id", "deleted_at"],
        unique=False,
        postgresql_where=sa.text("deleted_at IS NOT NULL"),
    )
    op.create_index(
        "ix_workspaces_wanted",
        "workspaces",
        ["owner_id"],
        unique=False,
        postgresql_where=sa.text("desired_state = 'RUNNING'"),
    )
    op.create_table(
        "archives",
        sa.Column("archive_op_id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("archive_key", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("unpacked", sa.BigInteger(), nullable=False),
        sa.Column("entries", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kept_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("removed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_archives_workspace_id")),
        sa.PrimaryKeyConstraint("archive_op_id", name=op.f("pk_archives")),
        sa.UniqueConstraint("archive_key", name=op.f("uq_archives_archive_key")),
    )
    op.create_index(op.f("ix_archives_workspace_id"), "archives", ["workspace_id"], unique=False)
    op.create_table(
        "timeline",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("operation", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_timeline_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_timeline")),
    )
    op.create_index("ix_timeline_workspace", "timeline", ["workspace_id", "id"], unique=False)
    op.execute("INSERT INTO leadership DEFAULT VALUES")
    for statement in (*FUNCTIONS, *TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    op.drop_index("ix_timeline_workspace", table_name="timeline")
    op.drop_table("timeline")
    op.drop_index(op.f("ix_archives_workspace_id"), table_name="archives")
    op.drop_table("archives")
    op.drop_index(
        "ix_workspaces_wanted", table_name="workspaces", postgresql_where=sa.text("desired_state = 'RUNNING'")
    )
    op.drop_index(
        "ix_workspaces_trash", table_name="workspaces", postgresql_where=sa.text("deleted_at IS NOT NULL")
    )
    op.drop_index(
        "ix_workspaces_owner", table_name="workspaces", postgresql_where=sa.text("deleted_at IS NULL")
    )
    op.drop_index(
        "ix_workspaces_active",
        table_name="workspaces",
        postgresql_where=sa.text("operation <> 'NONE' OR request IS NOT NULL"),
    )
    op.drop_table("workspaces")
    op.drop_index(op.f("ix_sessions_user_id"), table_name="sessions")
    op.drop_index(op.f("ix_sessions_expires_at"), table_name="sessions")
    op.drop_table("sessions")
    op.drop_index("uq_users_username", table_name="users", postgresql_where=sa.text("deleted_at IS NULL"))
    op.drop_table("users")
    op.drop_table("login_failures")
    op.drop_table("leadership")
    op.drop_table("installation")
    op.drop_table("gc_orphans")
    for name in ("tell_workspace", "tell_session_ended", "tell_user_changed"):
        op.execute(f"DROP FUNCTION {name}()")
