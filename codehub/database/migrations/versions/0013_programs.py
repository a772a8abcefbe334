"""tokens, service accounts, commands, and leases"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# A token is a credential like a session, so its end is announced on the same channel.
FUNCTIONS = (
    """
    CREATE FUNCTION tell_token_ended() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('session_ended',
            json_build_object('id_hash', encode(OLD.token_hash, 'hex'), 'user_id', OLD.user_id)::text);
        RETURN NULL;
    END $$
    """,
    """
    CREATE FUNCTION tell_holds_changed() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_notify('ws_sse', json_build_object('id', NEW.id, 'user_id', NEW.owner_id)::text);
        RETURN NULL;
    END $$
    """,
)
TRIGGERS = (
    "CREATE TRIGGER tell_token_ended AFTER DELETE ON tokens FOR EACH ROW EXECUTE FUNCTION tell_token_ended()",
    "CREATE TRIGGER tell_holds_changed AFTER UPDATE OF holds_changed_at ON workspaces "
    "FOR EACH ROW EXECUTE FUNCTION tell_holds_changed()",
)

# An older CodeHub cannot read a row with this request, and would leave the workspace alone for good.
DROP_RESTORES = """
    WITH dropped AS (
        UPDATE workspaces SET request = NULL WHERE request ->> 'kind' = 'restore' RETURNING id
    )
    INSERT INTO timeline (workspace_id, at, actor, event, message)
    SELECT id, now(), 'controller', 'cancelled',
        'The restore of the chosen archive was dropped, because an older CodeHub is about to be installed.'
    FROM dropped
"""


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.add_column(
        "users", sa.Column("service", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.create_check_constraint(op.f("ck_users_service_is_no_admin"), "users", "NOT service OR role = 'user'")
    op.add_column("sessions", sa.Column("password_at", time, server_default=sa.func.now(), nullable=False))
    op.execute("UPDATE sessions SET password_at = created_at")
    op.add_column("workspaces", sa.Column("person_access_at", time))
    op.add_column("workspaces", sa.Column("holds_changed_at", time))
    op.add_column("timeline", sa.Column("count", sa.Integer(), server_default=sa.text("1"), nullable=False))
    op.create_index(
        "ix_workspaces_without_person",
        "workspaces",
        [sa.text("(greatest(person_access_at, phase_changed_at))")],
        postgresql_where=sa.text(
            "phase = 'RUNNING' AND desired_state = 'RUNNING' AND operation = 'NONE' AND deleted_at IS NULL "
            "AND standby_ttl_seconds IS DISTINCT FROM 0"
        ),
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("user_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("scopes", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("workspaces", postgresql.ARRAY(sa.Text()), nullable=True),
        sa.Column("created_at", time, nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("expires_at", time, nullable=True),
        sa.Column("last_used_at", time, nullable=True),
        sa.CheckConstraint(
            "cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'manage', 'use', 'admin']",
            name=op.f("ck_tokens_scopes_known"),
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_tokens_user_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_tokens_token_hash")),
    )
    op.create_index(op.f("ix_tokens_user_id"), "tokens", ["user_id"])
    op.create_table(
        "execs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("by_token", sa.Boolean(), nullable=False),
        sa.Column("command", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.Column("cwd", sa.Text(), nullable=False),
        sa.Column("tty", sa.Boolean(), nullable=False),
        sa.Column("timeout_seconds", sa.Float(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("body_hash", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("created_at", time, nullable=False),
        sa.Column("started_at", time, nullable=True),
        sa.Column("ended_at", time, nullable=True),
        sa.Column("seen_at", time, nullable=False),
        sa.Column("missing_since", time, nullable=True),
        sa.Column("stdout_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("stderr_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("dropped_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("output_removed", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.CheckConstraint(
            "state IN ('starting', 'running', 'exited', 'killed', 'lost')", name=op.f("ck_execs_state_known")
        ),
        sa.CheckConstraint("(key IS NULL) = (body_hash IS NULL)", name=op.f("ck_execs_key_has_body_hash")),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_execs_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_execs")),
    )
    op.create_index("ix_execs_workspace", "execs", ["workspace_id", "id"])
    op.create_index(
        "ix_execs_alive",
        "execs",
        ["workspace_id"],
        postgresql_where=sa.text("state IN ('starting', 'running')"),
    )
    op.create_index("ix_execs_ended", "execs", ["ended_at"], postgresql_where=sa.text("ended_at IS NOT NULL"))
    op.create_index(
        "uq_execs_key",
        "execs",
        ["workspace_id", "actor_id", "key"],
        unique=True,
        postgresql_where=sa.text("key IS NOT NULL"),
    )
    op.create_table(
        "leases",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("workspace_id", sa.Text(), nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=False),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", time, nullable=False),
        sa.Column("expires_at", time, nullable=False),
        sa.ForeignKeyConstraint(["workspace_id"], ["workspaces.id"], name=op.f("fk_leases_workspace_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
    )
    op.create_index("ix_leases_workspace", "leases", ["workspace_id", "expires_at"])
    op.create_index(op.f("ix_leases_expires_at"), "leases", ["expires_at"])
    for statement in (*FUNCTIONS, *TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    op.execute(DROP_RESTORES)
    op.execute("DROP TRIGGER tell_holds_changed ON workspaces")
    op.execute("DROP FUNCTION tell_holds_changed()")
    op.drop_column("timeline", "count")
    op.drop_table("leases")
    op.drop_table("execs")
    op.drop_table("tokens")
    op.execute("DROP FUNCTION tell_token_ended()")
    op.drop_column("workspaces", "holds_changed_at")
    op.drop_column("workspaces", "person_access_at")
    op.drop_column("sessions", "password_at")
    op.drop_constraint("ck_users_service_is_no_admin", "users")
    op.drop_column("users", "service")
