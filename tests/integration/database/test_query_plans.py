"""Each query uses its indexes and reads few rows, in a database with 100,000 workspaces.

`make test` uses a fifth of them.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from codehub.database import (
    accounts,
    audit,
    credentials,
    exec_gate,
    exec_queries,
    gate,
    gateway_queries,
    gc_queries,
    holds,
    leader_database,
    lease_gate,
    lockout,
    sessions,
    timeline,
    tokens,
    ttl_queries,
    workspace_queries,
)
from codehub.database.audit import AuditedTransaction, AuditFilters
from codehub.database.credentials import Credential
from codehub.database.workspace_queries import WorkspaceFilter
from codehub.domain.audit import Action, Actor
from codehub.domain.scopes import CredentialKind
from codehub.domain.states import Phase, Role
from codehub.domain.ttl import TtlDefaults
from tests.integration.database.conftest import BACKENDS
from tests.integration.database.query_plans import NEWEST, OWN_TTL, ROWS, Call, Explainer, Plan, fill
from tests.services import Services, run

OWNER = "owner-5"
WORKSPACE = "e4da3b7fbbce2345d7772b0674"  # one of that owner's
SESSION = sessions.hash_session_id("5")
TOKEN = tokens.hash_token("5")
NEVER_DUE = TtlDefaults(OWN_TTL, OWN_TTL, OWN_TTL)
TTL_INDEXES = {
    f"ix_workspaces_{kind}_ttl_{source}" for kind in ("standby", "archive") for source in ("default", "own")
}


@pytest.fixture(scope="module")
def explainer(services: Services) -> Iterator[Explainer]:
    url = run(services.migrated_database())
    run(fill(url))
    yield Explainer(url)
    run(services.drop_database(url))


def page(
    owner_id: str | None = OWNER,
    phase: Phase | None = None,
    search_words: tuple[str, ...] = (),
    *,
    trash: bool = False,
) -> Call:
    return lambda conn: workspace_queries.list_page(
        conn, WorkspaceFilter(owner_id, phase, search_words, trash), 50, 0
    )


def log_page(**filters: Any) -> Call:
    return lambda conn: audit.read_entries(conn, AuditFilters(**filters), 50)


def credential(kind: CredentialKind, id_hash: bytes) -> Credential:
    return Credential(kind, id_hash, OWNER, OWNER, Role.USER, frozenset(), None)


# Each call, with the indexes that it must use.
CALLS: dict[str, tuple[Call, set[str]]] = {
    "an owner's list": (page(), {"ix_workspaces_owner"}),
    "an owner's list of one phase": (page(phase=Phase.RUNNING), {"ix_workspaces_owner"}),
    "an owner's search": (page(search_words=("my",)), {"ix_workspaces_owner"}),
    "an owner's trash": (page(trash=True), {"ix_workspaces_trash"}),
    "an owner's trash of one phase": (page(phase=Phase.DELETED, trash=True), {"ix_workspaces_trash"}),
    "all users' list": (page(None), {"ix_workspaces_newest"}),
    "all users' list of the most common phase": (page(None, Phase.ARCHIVED), {"ix_workspaces_newest"}),
    "all users' list of a phase that none has": (page(None, Phase.PENDING), {"ix_workspaces_newest"}),
    "all users' trash": (page(None, trash=True), {"ix_workspaces_trash"}),
    "the overview": (
        workspace_queries.read_overview,
        {"ix_workspaces_newest", "ix_workspaces_trash", "ix_workspaces_errors"},
    ),
    "the events of one user": (
        lambda conn: workspace_queries.find_living(conn, OWNER, (WORKSPACE,)),
        {"pk_workspaces"},
    ),
    "the limits": (lambda conn: gate.usage(conn, OWNER), {"ix_workspaces_counted"}),
    "activity": (lambda conn: gate.advance_last_access(conn, {WORKSPACE: NEWEST}), {"pk_workspaces"}),
    "the TTLs": (
        lambda conn: ttl_queries.candidates(conn, NEVER_DUE, NEWEST),
        TTL_INDEXES | {"ix_workspaces_without_person"},
    ),
    "what keeps workspaces awake": (
        lambda conn: holds.read_holds(conn, [WORKSPACE]),
        {"ix_execs_alive", "ix_leases_workspace"},
    ),
    "a workspace's leases": (
        lambda conn: lease_gate.list_leases(conn, WORKSPACE, NEWEST),
        {"ix_leases_workspace"},
    ),
    "the end of leases": (
        lambda conn: lease_gate.remove_expired(conn, NEWEST, 1000),
        {"ix_leases_expires_at", "pk_workspaces"},
    ),
    "the controller's pass": (
        lambda conn: conn.execute(text(leader_database.VERSIONS)),
        {"ix_workspaces_versions"},
    ),
    "the purge": (lambda conn: gc_queries.purge_candidates(conn, NEWEST, BACKENDS), {"ix_workspaces_trash"}),
    "the deletes without a grace period": (
        lambda conn: gc_queries.purge_candidates(conn, None, BACKENDS),
        {"ix_workspaces_waived"},
    ),
    "the operations under way": (gc_queries.current_op_ids, {"ix_workspaces_operations"}),
    "what one workspace protects": (
        lambda conn: gc_queries.archive_holders(conn, NEWEST, BACKENDS, WORKSPACE),
        {"pk_workspaces"},
    ),
    "a route": (lambda conn: gateway_queries.find_route(conn, WORKSPACE), {"pk_workspaces"}),
    "a loading page": (
        lambda conn: gateway_queries.find_status_page_data(conn, WORKSPACE),
        {"ix_archives_workspace_id"},
    ),
    "the candidates for a stop": (
        lambda conn: gateway_queries.counted_workspaces(conn, OWNER, besides="none"),
        {"ix_workspaces_counted"},
    ),
    "a session": (
        lambda conn: gateway_queries.find_session_user(conn, SESSION, NEWEST),
        {"pk_sessions"},
    ),
    "watched sessions": (
        lambda conn: credentials.find_same(conn, [credential(CredentialKind.SESSION, SESSION)], NEWEST),
        {"pk_sessions"},
    ),
    "a token": (lambda conn: credentials.find_token(conn, TOKEN, NEWEST), {"uq_tokens_token_hash"}),
    "watched tokens": (
        lambda conn: credentials.find_same(conn, [credential(CredentialKind.TOKEN, TOKEN)], NEWEST),
        {"uq_tokens_token_hash"},
    ),
    "the use of a token": (lambda conn: tokens.record_use(conn, "token-5", NEWEST), {"pk_tokens"}),
    "a user's tokens": (lambda conn: tokens.list_tokens(conn, OWNER), {"ix_tokens_user_id"}),
    "revoking a token": (lambda conn: tokens.revoke_token(conn, OWNER, "token-5"), {"pk_tokens"}),
    "revoking a user's tokens": (lambda conn: tokens.revoke_tokens(conn, OWNER), {"ix_tokens_user_id"}),
    "signing in": (lambda conn: sessions.open_session(conn, OWNER, NEWEST), {"ix_sessions_expires_at"}),
    "signing out": (lambda conn: sessions.end_session(conn, SESSION), {"pk_sessions"}),
    "signing out everywhere": (lambda conn: sessions.end_sessions(conn, OWNER), {"ix_sessions_user_id"}),
    "a failed sign-in": (
        lambda conn: lockout.record_failure(conn, "x@1.2.3.4", NEWEST),
        {"pk_login_failures", "ix_login_failures_last_failed_at"},
    ),
    "the users": (lambda conn: accounts.list_accounts(conn, 50, 0), {"uq_users_username"}),
    "the audit log": (log_page(), {"pk_audit_log"}),
    "the audit log of an action": (log_page(action=Action.USER_CREATED), {"ix_audit_log_action"}),
    "the audit log of a user": (log_page(actor_id=OWNER), {"ix_audit_log_actor_id"}),
    "the audit log of a name": (log_page(actor_name=OWNER), {"ix_audit_log_actor_name"}),
    "the audit log about an id": (log_page(target_id="target-5"), {"ix_audit_log_target_id"}),
    "the audit log about a name": (log_page(target_name="target-5"), {"ix_audit_log_target_name"}),
    "the audit log of an hour": (
        log_page(since=NEWEST - timedelta(hours=1), until=NEWEST),
        {"ix_audit_log_at"},
    ),
    "the failed passwords of an hour": (
        lambda conn: AuditedTransaction(conn, Actor.anonymous("192.0.2.1"), NEWEST).record_failed_password(
            Action.SESSION_FAILED, None
        ),
        {"ix_audit_log_at"},
    ),
    "the end of the audit log": (
        lambda conn: audit.remove_older(conn, 0, NEWEST - timedelta(days=3650), 1000),
        {"ix_audit_log_at"},
    ),
    "a command": (lambda conn: exec_queries.find(conn, WORKSPACE, "exec-5"), {"ix_execs_workspace"}),
    "the commands with output": (lambda conn: exec_queries.with_output(conn, ["exec-5"]), {"pk_execs"}),
    "a workspace's commands": (lambda conn: exec_queries.newest(conn, WORKSPACE), {"ix_execs_workspace"}),
    "a key of a command": (
        lambda conn: exec_queries.has_key(conn, WORKSPACE, OWNER, "key-5"),
        {"uq_execs_key"},
    ),
    "the commands that run": (lambda conn: exec_queries.alive(conn, "process"), {"ix_execs_alive"}),
    "the commands to forget": (
        lambda conn: exec_gate.remove_expired(conn, NEWEST - timedelta(days=13), NEWEST),
        {"ix_execs_ended"},
    ),
    "a recent entry of a timeline": (
        lambda conn: timeline.find_recent(conn, WORKSPACE, NEWEST, actor="a (token ci)", event="x"),
        {"ix_timeline_workspace"},
    ),
    "a timeline": (lambda conn: workspace_queries.timeline_of(conn, WORKSPACE), {"ix_timeline_workspace"}),
}
BIG_TABLES = {
    "audit_log", "workspaces", "timeline", "archives", "sessions", "tokens", "login_failures", "execs",
    "leases",
}  # fmt: skip


@pytest.mark.parametrize(("call", "indexes"), CALLS.values(), ids=CALLS.keys())
async def test_a_query_uses_its_indexes(explainer: Explainer, call: Call, indexes: set[str]) -> None:
    check(await explainer.explain(call), indexes)


@pytest.mark.parametrize(("call", "indexes"), CALLS.values(), ids=CALLS.keys())
async def test_a_generic_plan_uses_the_indexes_too(
    explainer: Explainer, call: Call, indexes: set[str]
) -> None:
    check(await explainer.explain_generic(call), indexes)


def check(plans: list[Plan], indexes: set[str]) -> None:
    for plan in plans:
        assert not plan.scanned & BIG_TABLES, plan.statement
    assert indexes <= set().union(*(plan.indexes for plan in plans))


async def test_the_idle_pass_reads_only_its_index(explainer: Explainer) -> None:
    (plan,) = await explainer.explain(lambda conn: conn.execute(text(leader_database.VERSIONS)))
    (scan,) = (node for node in plan.nodes() if "Index Name" in node)
    assert scan["Node Type"] == "Index Only Scan"
    assert scan["Heap Fetches"] < 0.01 * ROWS
    assert scan["Actual Rows"] == pytest.approx(0.99 * ROWS, rel=0.01)


async def test_workspaces_that_are_not_due_are_not_read(explainer: Explainer) -> None:
    (nothing,) = await explainer.explain(lambda conn: ttl_queries.candidates(conn, NEVER_DUE, NEWEST))
    assert nothing.rows_read == 0
    nearly_all = timedelta(minutes=0.86 * ROWS)  # of the time since the oldest
    soon = TtlDefaults(OWN_TTL, int(nearly_all.total_seconds()))
    (some,) = await explainer.explain(lambda conn: ttl_queries.candidates(conn, soon, NEWEST))
    assert 0 < some.root["Actual Rows"] == some.rows_read < 0.03 * ROWS


async def test_the_limits_read_only_workspaces_that_count(explainer: Explainer) -> None:
    (plan,) = await explainer.explain(lambda conn: gate.usage(conn, OWNER))
    assert plan.rows_read == pytest.approx(0.01 * ROWS, rel=0.01)


async def test_every_index_is_used(explainer: Explainer) -> None:
    used: set[str] = set().union(*(indexes for _call, indexes in CALLS.values()))
    unused = await explainer.plain_indexes() - used
    assert unused == set()
