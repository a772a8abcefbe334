"""Audit log entries of commands on the host and of parts that start, and their output."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncEngine

from codehub.cli.start_audit import record_start
from codehub.clock import utc_now
from codehub.database import accounts
from codehub.database.engine import create_engine
from codehub.database.tables import audit_log
from codehub.domain.audit import CLI
from codehub.settings import Settings
from tests.integration.cli.conftest import outcome, program

Rows = list[tuple[str, str, str | None, dict[str, Any]]]


@pytest.fixture
async def engine(database_url: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(database_url)
    yield engine
    await engine.dispose()


async def recorded(engine: AsyncEngine) -> Rows:
    """Return actor, action, target and details of each entry."""
    c = audit_log.c
    async with engine.connect() as conn:
        found = await conn.execute(
            select(c.actor_kind, c.actor_name, c.action, c.target_name, c.details).order_by(c.id)
        )
    return [(f"{kind} {name}", action, target, details) for kind, name, action, target, details in found]


async def test_commands_on_the_host_need_no_password_of_an_admin_and_are_recorded(
    engine: AsyncEngine, database_url: str
) -> None:
    await accounts.create_account(engine, "alice", "a good password", actor=CLI, now=utc_now())
    database = {"DATABASE_URL": database_url}
    done = outcome(["users", "passwd", "alice", "--generate"], database)
    assert done.code == 0, done.stderr
    password = done.stdout.split("password:")[1].strip()
    await accounts.sign_in(engine, "alice", password, "", now=utc_now())
    line = json.loads(done.stderr)
    assert (line["event"], line["component"], line["action"]) == ("audit", "cli", "user.password_set")
    assert password not in done.stderr
    assert outcome(["users", "create-admin", "chief", "--generate"], database).code == 0
    assert outcome(["users", "delete", "alice", "--yes"], database).code == 0
    assert [row for row in await recorded(engine) if row[1] != "session.opened"] == [
        ("cli cli", "user.created", "alice", {"role": "user"}),
        ("cli cli", "user.password_set", "alice", {}),
        ("cli cli", "user.created", "chief", {"role": "admin"}),
        ("cli cli", "user.deleted", "alice", {"workspaces": 0}),
    ]


async def test_a_part_that_starts_records_what_weakens_security_and_when_that_ends(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    async def start(part: str, *, is_root: bool = False, **given: object) -> None:
        settings = Settings(database_url=database_url, data_dir=tmp_path, **given)  # type: ignore[arg-type]
        await record_start(settings, part, is_root=is_root)

    await start("gateway")
    assert await recorded(engine) == []
    for _ in range(2):
        await start("gateway", apps_domain="", host="0.0.0.0")
        await start("coordinator", insecure_process_runtime=True, workspace_allow_egress="10.1.0.0/16")
    await start("coordinator", runtime="docker", docker_firewall=False)
    await start("gateway")
    await start("gateway", trusted_proxies="::/0")
    weak = "security.weakened"
    assert await recorded(engine) == [
        ("system gateway", weak, "gateway", {"settings": ["path_mode", "plain_http"]}),
        (
            "system coordinator", weak, "coordinator",
            {"settings": ["insecure_process_runtime", "private_egress"]},
        ),
        ("system coordinator", weak, "coordinator", {"settings": ["docker_firewall_off"]}),
        ("system gateway", "security.restored", "gateway", {}),
        ("system gateway", weak, "gateway", {"settings": ["wide_trusted_proxies"]}),
    ]  # fmt: skip


async def test_a_part_that_starts_as_root_or_without_its_guards_records_that(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    images = tmp_path / "images.toml"
    images.write_text(
        '[[image]]\nname = "open"\ndefault = true\nready_path = "/"\nprocess = ["true"]\n'
        'seccomp = "unconfined"\n'
    )
    settings = Settings(
        database_url=database_url, data_dir=tmp_path, images_file=images,
        disk_reserve_files=0, part_timeout_seconds=0,
    )  # type: ignore[call-arg]  # fmt: skip
    for part in ("api", "gateway", "coordinator"):
        await record_start(settings, part, is_root=True)
    assert [row[3]["settings"] for row in await recorded(engine) if row[1] == "security.weakened"] == [
        ["api_as_root"],
        ["gateway_as_root", "no_part_watchdog"],
        ["unconfined_image", "no_disk_reserve"],
    ]


async def test_a_changed_limit_of_archives_is_recorded(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    for limit in (0, 1 << 30, 1 << 30):
        settings = Settings(
            database_url=database_url, data_dir=tmp_path, limits_max_archive_bytes_per_user=limit
        )  # type: ignore[call-arg]
        await record_start(settings, "api", is_root=False)
    changed = [row[3]["max_archive_bytes_per_user"] for row in await recorded(engine)]
    assert changed == [0, 1 << 30]


async def test_a_part_prints_its_entries_as_json_on_standard_output(
    engine: AsyncEngine, database_url: str, redis_url: str
) -> None:
    """Whatever the log level is."""
    environment = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "LOG_LEVEL": "error"}
    with program("serve", "api", LIMITS_MAX_RUNNING_PER_USER="7", **environment) as api:
        assert api.process.stdout is not None
        line = json.loads(api.process.stdout.readline())
    limits = {
        "max_running_per_user": 7,
        "max_running_global": 100,
        "max_workspaces_per_user": 200,
        "max_archive_bytes_per_user": 0,
    }
    assert (line["event"], line["action"], line["details"]) == ("audit", "limits.changed", limits)
    assert (line["component"], line["actor_kind"], line["actor_name"]) == ("api", "system", "api")
    assert ("system api", "limits.changed", "limits", limits) in await recorded(engine)
