"""Tables. Their constraints reject states that the contracts forbid."""

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import INET, JSONB

from codehub.database.index_predicates import (
    ARCHIVE_TTL,
    COUNTED,
    FAILED,
    MAY_STAND_BY,
    STANDBY_TTL,
    TRASH,
    WAIVED,
    WITHOUT_PERSON_SINCE,
    TtlPredicates,
)
from codehub.domain.audit import ActorKind, Outcome
from codehub.domain.states import DesiredState, ErrorReason, Operation, Phase, Role

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_name)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Time = DateTime(timezone=True)
Json = JSONB(none_as_null=True)


def _one_of(
    column: str, values: type[ActorKind | DesiredState | ErrorReason | Operation | Outcome | Phase | Role]
) -> CheckConstraint:
    literals = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({literals})", name=f"{column}_known")


def _ttl_indexes(name: str, ttl: TtlPredicates) -> tuple[Index, Index]:
    return (
        Index(f"ix_workspaces_{name}_default", ttl.since, postgresql_where=text(ttl.has_default)),
        Index(f"ix_workspaces_{name}_own", text(f"({ttl.own_deadline})"), postgresql_where=text(ttl.has_own)),
    )


installation = Table(
    "installation",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("id", Text, nullable=False),
    Column("cookie_key", LargeBinary, nullable=False),
    Column("created_at", Time, nullable=False, server_default=func.now()),
    Column("uid_base", Integer, nullable=False, server_default=text("2000000")),
    Column("volumes_claimed_at", Time),
    Column("archives_claimed_at", Time),
    CheckConstraint("singleton", name="one_row"),
)

leadership = Table(
    "leadership",
    metadata,
    Column("singleton", Boolean, primary_key=True, server_default=text("true")),
    Column("epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("holder", Text),
    Column("backend_pid", Integer),
    Column("heartbeat_at", Time),
    CheckConstraint("singleton", name="one_row"),
)

users = Table(
    "users",
    metadata,
    Column("id", Text, primary_key=True),
    Column("username", Text, nullable=False),
    Column("password_hash", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_at", Time, nullable=False, server_default=func.now()),
    Column("deleted_at", Time),
    Column("service", Boolean, nullable=False, server_default=text("false")),
    _one_of("role", Role),
    CheckConstraint("NOT service OR role = 'user'", name="service_is_no_admin"),
    CheckConstraint("username = lower(username) AND username <> ''", name="username_lower"),
    Index("uq_users_username", "username", unique=True, postgresql_where=text("deleted_at IS NULL")),
)

sessions = Table(
    "sessions",
    metadata,
    Column("id_hash", LargeBinary, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id"), nullable=False, index=True),
    Column("created_at", Time, nullable=False, server_default=func.now()),
    Column("expires_at", Time, nullable=False, index=True),
    Column("password_at", Time, nullable=False, server_default=func.now()),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    Column("user_id", Text, ForeignKey("users.id"), nullable=False, index=True),
    Column("name", Text, nullable=False),
    Column("token_hash", LargeBinary, nullable=False, unique=True),
    Column("prefix", Text, nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("workspaces", ARRAY(Text)),
    Column("created_at", Time, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires_at", Time),
    Column("last_used_at", Time),
    CheckConstraint(
        "cardinality(scopes) > 0 AND scopes <@ ARRAY['read', 'manage', 'use', 'admin']", name="scopes_known"
    ),
)

login_failures = Table(
    "login_failures",
    metadata,
    Column("key", Text, primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("last_failed_at", Time, nullable=False, index=True),
    Column("locked_until", Time),
)

workspaces = Table(
    "workspaces",
    metadata,
    Column("id", Text, primary_key=True),
    Column("number", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("owner_id", Text, ForeignKey("users.id"), nullable=False),
    Column("name", Text, nullable=False),
    Column("description", Text, nullable=False, server_default=""),
    Column("memo", Text, nullable=False, server_default=""),
    Column("image_ref", Text, nullable=False),
    Column("instance_backend", Text, nullable=False),
    Column("storage_backend", Text, nullable=False),
    Column("home_store_key", Text, nullable=False, unique=True),
    Column("standby_ttl_seconds", Integer),
    Column("archive_ttl_seconds", Integer),
    Column("awake_cpu_percent", Integer),
    Column("desired_state", Text, nullable=False),
    Column("deleted_at", Time),
    Column("purged_at", Time),
    Column("grace_waived_at", Time),
    Column("keep_until", Time),
    Column("last_access_at", Time, nullable=False),
    Column("person_access_at", Time),
    Column("holds_changed_at", Time),
    Column("request", Json),
    Column("conditions", Json, nullable=False),
    Column("observed_at", Time),
    Column("phase", Text, nullable=False),
    Column("phase_changed_at", Time, nullable=False),
    Column("operation", Text, nullable=False, server_default="NONE"),
    Column("op_id", Text),
    Column("op_started_at", Time),
    Column("progress", Json),
    Column("progress_at", Time),
    Column("archive_op_id", Text),
    Column("archive_key", Text),
    Column("upstream", Text),
    Column("error_count", Integer, nullable=False, server_default="0"),
    Column("error_reason", Text),
    Column("error_message", Text),
    Column("next_retry_at", Time),
    Column("started_at", Time),
    Column("home_ctx", Json),
    Column("created_at", Time, nullable=False),
    Column("updated_at", Time, nullable=False),
    Column("version", BigInteger, nullable=False, server_default=text("0")),
    _one_of("desired_state", DesiredState),
    _one_of("phase", Phase),
    _one_of("operation", Operation),
    _one_of("error_reason", ErrorReason),
    CheckConstraint("phase <> 'ERROR' OR operation = 'NONE'", name="error_has_no_operation"),
    CheckConstraint(
        "(operation = 'NONE') = (op_id IS NULL) AND (operation = 'NONE') = (op_started_at IS NULL)",
        name="operation_has_op_id",
    ),
    CheckConstraint(
        "operation NOT IN ('ARCHIVING', 'CREATE_EMPTY_ARCHIVE') OR archive_op_id IS NOT NULL",
        name="archiving_has_archive_op_id",
    ),
    CheckConstraint("(desired_state = 'DELETED') = (deleted_at IS NOT NULL)", name="deleted_both_ways"),
    CheckConstraint("purged_at IS NULL OR deleted_at IS NOT NULL", name="purged_is_deleted"),
    CheckConstraint("grace_waived_at IS NULL OR deleted_at IS NOT NULL", name="grace_waived_is_deleted"),
    CheckConstraint("purged_at IS NULL OR operation <> 'RESTORING'", name="purged_is_not_restored"),
    CheckConstraint("error_count >= 0", name="error_count_positive"),
    CheckConstraint("standby_ttl_seconds >= 0 AND archive_ttl_seconds >= 0", name="ttl_not_negative"),
    CheckConstraint("awake_cpu_percent >= 0", name="awake_cpu_percent_not_negative"),
    CheckConstraint("upstream IS NULL OR upstream ~ '^(unix:/|tcp:)'", name="upstream_form"),
    Index(
        "ix_workspaces_owner", "owner_id", "created_at", "number", postgresql_where=text("deleted_at IS NULL")
    ),
    Index(
        "ix_workspaces_newest", "created_at", "number", "phase", postgresql_where=text("deleted_at IS NULL")
    ),
    Index("ix_workspaces_trash", "owner_id", "deleted_at", "number", postgresql_where=text(TRASH)),
    Index("ix_workspaces_waived", "id", postgresql_where=text(WAIVED)),
    Index("ix_workspaces_errors", "phase_changed_at", postgresql_where=text(FAILED)),
    Index("ix_workspaces_operations", "op_id", postgresql_where=text("op_id IS NOT NULL")),
    Index("ix_workspaces_counted", "owner_id", postgresql_where=text(COUNTED)),
    Index(
        "ix_workspaces_versions",
        "id",
        postgresql_include=["version"],
        postgresql_where=text("purged_at IS NULL"),
    ),
    *_ttl_indexes("standby_ttl", STANDBY_TTL),
    *_ttl_indexes("archive_ttl", ARCHIVE_TTL),
    Index(
        "ix_workspaces_without_person",
        text(f"({WITHOUT_PERSON_SINCE})"),
        postgresql_where=text(MAY_STAND_BY),
    ),
)

archives = Table(
    "archives",
    metadata,
    Column("archive_op_id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False, index=True),
    Column("archive_key", Text, nullable=False, unique=True),
    Column("sha256", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("unpacked", BigInteger, nullable=False),
    Column("entries", BigInteger, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("kept_until", Time),
    Column("removed_at", Time),
)

execs = Table(
    "execs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("actor_name", Text, nullable=False),
    Column("by_token", Boolean, nullable=False),
    Column("command", Json, nullable=False),
    Column("cwd", Text, nullable=False),
    Column("tty", Boolean, nullable=False),
    Column("timeout_seconds", Float),
    Column("key", Text),
    Column("body_hash", LargeBinary),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("exit_code", Integer),
    Column("created_at", Time, nullable=False),
    Column("started_at", Time),
    Column("ended_at", Time),
    Column("seen_at", Time, nullable=False),
    Column("missing_since", Time),
    Column("stdout_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("stderr_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("dropped_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("output_removed", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("state IN ('starting', 'running', 'exited', 'killed', 'lost')", name="state_known"),
    CheckConstraint("(key IS NULL) = (body_hash IS NULL)", name="key_has_body_hash"),
    Index("ix_execs_workspace", "workspace_id", "id"),
    Index("ix_execs_alive", "workspace_id", postgresql_where=text("state IN ('starting', 'running')")),
    Index("ix_execs_ended", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
    Index(
        "uq_execs_key",
        "workspace_id",
        "actor_id",
        "key",
        unique=True,
        postgresql_where=text("key IS NOT NULL"),
    ),
)

leases = Table(
    "leases",
    metadata,
    Column("id", Text, primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("actor_id", Text, nullable=False),
    Column("actor_name", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False, index=True),
    Index("ix_leases_workspace", "workspace_id", "expires_at"),
)

cpu_holds = Table(
    "cpu_holds",
    metadata,
    Column("workspace_id", Text, ForeignKey("workspaces.id"), primary_key=True),
    Column("percent", Float, nullable=False),
    Column("above_percent", Integer, nullable=False),
    Column("began_at", Time, nullable=False),
    Column("measured_at", Time, nullable=False),
)

home_sizes = Table(
    "home_sizes",
    metadata,
    Column("workspace_id", Text, ForeignKey("workspaces.id"), primary_key=True),
    Column("bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("entries", BigInteger, nullable=False, server_default=text("0")),
    Column("complete", Boolean, nullable=False, server_default=text("true")),
    Column("largest", Json),
    Column("quota_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("measured_at", Time),
    Column("notice", Text),
    Column("warned_at", Time),
    Column("stopped_at", Time),
)

gateways = Table(
    "gateways",
    metadata,
    Column("id", Text, primary_key=True),
    Column("heard_at", Time, nullable=False),
    Column("flushes", BigInteger, nullable=False, server_default=text("0")),
    Column("carried", BigInteger, nullable=False, server_default=text("0")),
    Column("ended", Boolean, nullable=False, server_default=text("false")),
)

health_checks = Table(
    "health_checks",
    metadata,
    Column("name", Text, primary_key=True),
    Column("ok", Boolean, nullable=False),
    Column("message", Text, nullable=False),
    Column("checked_at", Time, nullable=False),
)

gc_orphans = Table(
    "gc_orphans",
    metadata,
    Column("key", Text, primary_key=True),
    Column("first_seen_at", Time, nullable=False),
)

timeline = Table(
    "timeline",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("workspace_id", Text, ForeignKey("workspaces.id"), nullable=False),
    Column("at", Time, nullable=False),
    Column("actor", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("operation", Text),
    Column("count", Integer, nullable=False, server_default=text("1")),
    Index("ix_timeline_workspace", "workspace_id", "id"),
)

audit_log = Table(
    "audit_log",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", Time, nullable=False, index=True),
    Column("actor_id", Text),
    Column("actor_name", Text, nullable=False),
    Column("actor_kind", Text, nullable=False),
    Column("address", INET),
    Column("action", Text, nullable=False),
    Column("target_kind", Text),
    Column("target_id", Text),
    Column("target_name", Text),
    Column("outcome", Text, nullable=False),
    Column("details", Json, nullable=False),
    _one_of("actor_kind", ActorKind),
    _one_of("outcome", Outcome),
    CheckConstraint(
        "octet_length(details::text) <= 8192 AND char_length(actor_name) <= 200 "
        "AND coalesce(char_length(target_name), 0) <= 200",
        name="bounded",
    ),
    Index("ix_audit_log_action", "action", "id"),
    Index("ix_audit_log_actor_name", "actor_name", "id"),
    Index("ix_audit_log_actor_id", "actor_id", "id"),
    Index("ix_audit_log_target_name", "target_name", "id"),
    Index("ix_audit_log_target_id", "target_id", "id"),
)

counted_failures = Table(
    "counted_failures",
    metadata,
    Column("window_at", Time, primary_key=True),
    Column("failures", BigInteger, nullable=False),
)
