"""What a workspace uses, and its CPU use in the explanation of why it runs, through the API."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisDown
from sqlalchemy import insert
from sqlalchemy.dialects.postgresql import insert as upsert

from codehub.bus.usage_samples import KEPT, KEY, UsageSamples
from codehub.database.tables import cpu_holds, home_sizes
from codehub.domain.resource_usage import HISTORY, UsageSample
from codehub.domain.states import Role
from tests.integration.api.conftest import Api

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
CONDITION = {"reason": "", "message": "", "last_transition_time": "2026-01-01T00:00:00+00:00"}
WITH_HOME = {
    name: {"status": "True", **CONDITION}
    for name in (
        "storage.volume_ready",
        "storage.archive_ready",
        "infra.container_exists",
        "infra.container_ready",
        "policy.healthy",
    )
}


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url) as redis:
        yield redis


async def running(api: Api, client: httpx.AsyncClient, since: timedelta = 2 * HOUR, **values: Any) -> str:
    """Return the id of a workspace that has been running for so long."""
    made = await api.workspace(client, **values)
    state = {"phase": "RUNNING", "desired_state": "RUNNING", "conditions": WITH_HOME}
    await api.set(made["id"], **state, phase_changed_at=datetime.now(UTC) - since)
    return str(made["id"])


async def measure_home(api: Api, workspace_id: str, size: int, quota: int = 0) -> None:
    values = {"bytes": size, "quota_bytes": quota, "measured_at": datetime.now(UTC)}
    async with api.engine.begin() as conn:
        statement = upsert(home_sizes).values(workspace_id=workspace_id, entries=1, **values)
        await conn.execute(statement.on_conflict_do_update(index_elements=["workspace_id"], set_=values))


def sample(ago: timedelta, cpu_seconds: float | None, **values: Any) -> UsageSample:
    given = {
        "cpu_cores": 2.0,
        "memory_bytes": 100,
        "memory_limit": 400,
        "processes": 7,
        "processes_limit": 512,
    }
    return UsageSample(datetime.now(UTC) - ago, "op1", cpu_seconds, **(given | values))


async def append(redis: Redis, workspace_id: str, *samples: UsageSample) -> None:
    for each in samples:
        await UsageSamples(redis).append({workspace_id: each})


async def stats(client: httpx.AsyncClient, workspace_id: str) -> Any:
    answer = await client.get(f"/api/v1/workspaces/{workspace_id}/stats")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_running_workspace_shows_what_it_uses_now_and_used_before(api: Api, redis: Redis) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    await measure_home(api, name, 3000)
    home = {"home_bytes": 3000, "free_bytes": 9000}
    await append(
        redis, name, sample(2 * MINUTE, 10), sample(MINUTE, 100, **home), sample(0 * MINUTE, 130, **home)
    )
    found = await stats(alice, name)
    assert found["interval_seconds"] == 60
    assert found["cpu"]["percent"] == pytest.approx(50, abs=1)
    assert found["cpu"]["percent_of_cap"] == pytest.approx(25, abs=1)
    assert found["cpu"]["average_percent"] == pytest.approx(20, abs=1)
    assert (found["cpu"]["cores"], found["cpu"]["reason"]) == (2, None)
    assert found["memory"] == {"used_bytes": 100, "limit_bytes": 400, "reason": None}
    assert found["processes"] == {"count": 7, "limit": 512, "reason": None}
    shown = found["home"]
    assert (shown["bytes"], shown["free_bytes"], shown["complete"], shown["reason"]) == (
        3000,
        9000,
        True,
        None,
    )
    percents = [each["cpu_percent"] for each in found["samples"]]
    assert percents[0] is None
    assert percents[1:] == [pytest.approx(150, abs=2), pytest.approx(50, abs=1)]
    assert [each["home_free_bytes"] for each in found["samples"]] == [None, 9000, 9000]
    assert found["measured_at"] == found["samples"][-1]["at"]


async def test_the_samples_of_an_hour_are_kept_and_no_more(api: Api, redis: Redis) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    await append(redis, name, *(sample(2 * HOUR - minute * MINUTE, minute) for minute in range(121)))
    assert await redis.llen(KEY + name) == KEPT
    assert 0 < await redis.ttl(KEY + name) <= (HISTORY + MINUTE).total_seconds()
    found = await stats(alice, name)
    assert len(found["samples"]) in (60, 61)
    assert {each["cpu_percent"] for each in found["samples"][1:]} <= {1.6, 1.7}


async def test_what_is_not_measured_is_null_with_a_sentence(api: Api, redis: Redis) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    values = {
        "memory_bytes": None,
        "memory_reason": "no memory",
        "processes": None,
        "processes_reason": "none",
    }
    await append(redis, name, sample(MINUTE, None, cpu_reason="no CPU", **values))
    found = await stats(alice, name)
    assert found["cpu"] == {
        "percent": None, "percent_of_cap": None, "average_percent": None, "cores": 2, "reason": "no CPU"
    }  # fmt: skip
    assert found["memory"]["used_bytes"] is None and found["memory"]["reason"] == "no memory"
    assert found["processes"]["count"] is None and found["processes"]["reason"] == "none"
    assert found["home"]["bytes"] is None
    assert found["home"]["reason"].startswith("The home has not been measured yet.")
    await append(redis, name, sample(0 * MINUTE, 5))
    assert (await stats(alice, name))["cpu"]["reason"].startswith("CPU use is known after the second")
    await measure_home(api, name, 3000)
    home = (await stats(alice, name))["home"]
    assert (home["bytes"], home["free_bytes"]) == (3000, None)
    assert home["reason"] == "The disk of the homes cannot be observed."


@pytest.mark.parametrize(
    ("phase", "since", "ago", "reason"),
    [
        ("STANDBY", 2 * HOUR, MINUTE, "The workspace does not run, so it uses nothing."),
        ("RUNNING", MINUTE, 10 * MINUTE, "The workspace has just started. It is measured once a minute."),
        ("RUNNING", 10 * MINUTE, 20 * MINUTE, "The workspace has not been measured since it started."),
        ("RUNNING", HOUR, 10 * MINUTE, "The workspace has not been measured since 20"),
    ],
)
async def test_an_old_sample_does_not_show_the_present(
    api: Api, redis: Redis, phase: str, since: timedelta, ago: timedelta, reason: str
) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice, since)
    await measure_home(api, name, 3000)
    await api.set(name, phase=phase, desired_state=phase)
    await append(redis, name, sample(ago, 10))
    found = await stats(alice, name)
    assert found["measured_at"] is None
    for part, value in (("cpu", "percent"), ("memory", "used_bytes"), ("processes", "count")):
        assert found[part][value] is None and found[part]["reason"].startswith(reason)
    assert found["home"]["bytes"] == 3000 and found["home"]["free_bytes"] is None
    assert len(found["samples"]) == 1, "the last hour is shown all the same"


async def test_an_archived_workspace_has_no_home_to_show(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    made = await api.workspace(alice)
    found = await stats(alice, made["id"])
    assert found["home"]["reason"] == "The workspace has no home on the disk at present."
    assert found["samples"] == []


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff", b"[]", b"null", b"{}", b'{"at": "soon", "run": "op1"}', b'{"at": 1e400, "run": []}'],
)
async def test_garbage_in_redis_is_no_sample(api: Api, redis: Redis, garbage: bytes) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    await redis.rpush(KEY + name, garbage)  # type: ignore[misc]
    await append(redis, name, sample(0 * MINUTE, 5))
    assert len((await stats(alice, name))["samples"]) == 1


async def test_another_type_in_redis_is_as_if_it_did_not_answer(api: Api, redis: Redis) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    await redis.set(KEY + name, "no list")
    found = await stats(alice, name)
    assert found["cpu"]["reason"].startswith("Redis, which keeps the measurements, does not answer.")


async def test_without_redis_the_call_answers(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_self: UsageSamples, _ids: object) -> None:
        raise RedisDown("it is down")

    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    monkeypatch.setattr(UsageSamples, "read", fail)
    found = await stats(alice, name)
    for part in ("cpu", "memory", "processes"):
        assert found[part]["reason"].startswith("Redis, which keeps the measurements, does not answer.")


async def test_cpu_use_explains_why_a_workspace_runs(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    name = await running(api, alice)
    now = datetime.now(UTC)
    async with api.engine.begin() as conn:
        values = {"percent": 83.9, "above_percent": 50, "began_at": now - HOUR, "measured_at": now}
        await conn.execute(insert(cpu_holds).values(workspace_id=name, **values))
    for found in (
        (await alice.get(f"/api/v1/workspaces/{name}")).json(),
        (await alice.get("/api/v1/workspaces")).json()["items"][0],
    ):
        assert (found["standby"]["code"], found["standby"]["cpu_percent"]) == ("cpu", 83)
        assert found["standby"]["cpu_above_percent"] == 50
        assert "83 % of a core on average over 10 minutes" in found["standby"]["reason"]


async def test_the_cpu_use_that_keeps_it_awake_is_set_and_reset(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    assert (await api.workspace(alice))["awake_cpu_percent"] is None
    made = await api.workspace(alice, awake_cpu_percent=150)
    path = f"/api/v1/workspaces/{made['id']}"
    assert made["awake_cpu_percent"] == 150
    for value in (0, 10_000, None):
        changed = await alice.patch(path, json={"awake_cpu_percent": value})
        assert changed.status_code == 200 and changed.json()["awake_cpu_percent"] == value
    assert (await alice.patch(path, json={"memo": "note"})).json()["awake_cpu_percent"] is None
    for bad in (-1, 10_001, 0.5, "50", True, [50]):
        answer = await alice.patch(path, json={"awake_cpu_percent": bad})
        assert answer.status_code == 422 and "awake_cpu_percent" in answer.json()["error"]["message"]


async def test_the_default_is_shown_in_the_session(api: Api) -> None:
    alice = await api.quick_client("alice", Role.USER)
    assert (await alice.get("/api/v1/session")).json()["ttl"]["awake_cpu_percent"] == 0
