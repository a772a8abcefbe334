"""the append-only audit log, and a counter of failed passwords without an entry"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# Only the leader's retention sets the current epoch. Entries of the last day always remain, as
# AUDIT_RETENTION_DAYS counts whole days.
APPEND_ONLY = """
    CREATE FUNCTION keep_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF OLD.at < now() - interval '1 day' AND EXISTS (
                SELECT FROM leadership WHERE epoch::text = current_setting('codehub.audit_retention', true)
            ) THEN
                RETURN OLD;
            END IF;
        END IF;
        RAISE EXCEPTION 'the audit log is append-only: % is refused', TG_OP USING ERRCODE = 'restrict_violation';
    END $$
"""
OF_ROWS = (
    "CREATE TRIGGER keep_audit_log BEFORE UPDATE OR DELETE ON audit_log "
    "FOR EACH ROW EXECUTE FUNCTION keep_audit_log()"
)
OF_ALL = (
    "CREATE TRIGGER keep_audit_log_whole BEFORE TRUNCATE ON audit_log "
    "FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_log()"
)
INDEXED = ("action", "actor_name", "actor_id", "target_name", "target_id")


def upgrade() -> None:
    time = sa.DateTime(timezone=True)
    op.create_table(
        "audit_log",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("at", time, nullable=False),
        sa.Column("actor_id", sa.Text(), nullable=True),
        sa.Column("actor_name", sa.Text(), nullable=False),
        sa.Column("actor_kind", sa.Text(), nullable=False),
        sa.Column("address", postgresql.INET(), nullable=True),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target_kind", sa.Text(), nullable=True),
        sa.Column("target_id", sa.Text(), nullable=True),
        sa.Column("target_name", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("details", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=False),
        sa.CheckConstraint(
            "actor_kind IN ('user', 'admin', 'anonymous', 'cli', 'system')",
            name=op.f("ck_audit_log_actor_kind_known"),
        ),
        sa.CheckConstraint("outcome IN ('success', 'failure')", name=op.f("ck_audit_log_outcome_known")),
        sa.CheckConstraint(
            "octet_length(details::text) <= 8192 AND char_length(actor_name) <= 200 "
            "AND coalesce(char_length(target_name), 0) <= 200",
            name=op.f("ck_audit_log_bounded"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_log")),
    )
    op.create_index("ix_audit_log_at", "audit_log", ["at"])
    for column in INDEXED:
        op.create_index(f"ix_audit_log_{column}", "audit_log", [column, "id"])
    op.create_table(
        "counted_failures",
        sa.Column("window_at", time, nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("window_at", name=op.f("pk_counted_failures")),
    )
    op.execute(APPEND_ONLY)
    op.execute(OF_ROWS)
    op.execute(OF_ALL)


def downgrade() -> None:
    op.drop_table("counted_failures")
    op.drop_table("audit_log")
    op.execute("DROP FUNCTION keep_audit_log()")
