"""A flood of sign-ins does not delay users who have signed in before."""

import asyncio
import threading
from collections.abc import Iterator

import httpx
import pytest

from codehub.api import sign_in_limit
from codehub.api.app import create_app
from codehub.bus import known_networks
from codehub.bus.known_networks import KnownNetworks
from codehub.database import passwords
from codehub.domain.states import Role
from tests.integration.api.conftest import PASSWORD, Api
from tests.waiting import eventually, until

LOGIN = "/api/v1/login"
KNOWN_ADDRESS = "192.0.2.1"


class BlockedPasswordChecks:
    """Argon2 computations for unknown names that block until the test releases them."""

    def __init__(self) -> None:
        self.running = 0
        self.release = threading.Event()


@pytest.fixture
def blocked_checks(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockedPasswordChecks]:
    checks = BlockedPasswordChecks()
    matches = passwords._matches

    def hold(password: str, password_hash: str) -> bool:
        if password_hash == passwords.DUMMY_HASH:
            checks.running += 1
            assert checks.release.wait(300)
        return matches(password, password_hash)

    monkeypatch.setattr(passwords, "_matches", hold)
    yield checks
    checks.release.set()


async def sign_in(api: Api, address: str, name: str, password: str = PASSWORD) -> httpx.Response:
    client = await api.client(**{"X-Forwarded-For": address})
    return await client.post(LOGIN, json={"username": name, "password": password})


def flood(api: Api, count: int, address: str = "") -> list["asyncio.Task[httpx.Response]"]:
    """Start sign-ins with unknown names, from one address or each from another."""
    return [
        asyncio.create_task(
            sign_in(api, address or f"198.51.{number // 250}.{number % 250}", f"nobody-{number}")
        )
        for number in range(count)
    ]


async def test_during_a_flood_a_known_network_signs_in_before_all_that_wait(
    api: Api, blocked_checks: BlockedPasswordChecks
) -> None:
    await api.quick_client("alice", Role.USER)
    assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200
    attempts = flood(api, 100)
    admitted = sign_in_limit.NEW_AT_ONCE + sign_in_limit.NEW_WAITING
    await until(lambda: sum(task.done() for task in attempts) == 100 - admitted, "the queue to be full")
    await until(lambda: blocked_checks.running == sign_in_limit.NEW_AT_ONCE, "its slots to be taken")
    assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200
    assert blocked_checks.running == sign_in_limit.NEW_AT_ONCE, "no sign-in of the flood ran in between"
    rejected = [task.result() for task in attempts if task.done()]
    assert {answer.status_code for answer in rejected} == {429}
    assert all(int(answer.headers["retry-after"]) > 0 for answer in rejected)
    blocked_checks.release.set()
    assert [(await task).status_code for task in attempts].count(401) == admitted


async def test_a_flood_from_one_known_network_does_not_block_the_others(
    api: Api, blocked_checks: BlockedPasswordChecks
) -> None:
    """A user may send it from the office network of other users."""
    for name, address in (("alice", KNOWN_ADDRESS), ("mallory", "192.0.2.66")):
        await api.quick_client(name, Role.USER)
        assert (await sign_in(api, address, name)).status_code == 200
    attempts = flood(api, 90, "192.0.2.66")
    admitted = sign_in_limit.KNOWN_AT_ONCE + sign_in_limit.KNOWN_WAITING
    await until(lambda: sum(task.done() for task in attempts) == 90 - admitted, "the queue to be full")
    await until(lambda: blocked_checks.running == sign_in_limit.KNOWN_AT_ONCE, "its slots to be taken")
    alice = asyncio.create_task(sign_in(api, KNOWN_ADDRESS, "alice"))
    await until(
        lambda: sum(task.done() for task in attempts) > 90 - admitted or alice.done(), "room to be made"
    )
    blocked_checks.release.set()
    assert (await alice).status_code == 200
    assert sum(task.done() for task in attempts) < 90 - admitted // 2, "alice did not wait for all the others"
    await asyncio.gather(*attempts)


async def test_a_new_address_is_answered_at_once_during_a_flood_and_signs_in_after_it(
    api: Api, blocked_checks: BlockedPasswordChecks
) -> None:
    await api.quick_client("alice", Role.USER)
    attempts = flood(api, 100)
    await until(lambda: sum(task.done() for task in attempts) > 80, "the queue to be full")
    refused = await sign_in(api, "192.0.2.7", "alice")
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "TOO_MANY_REQUESTS"
    blocked_checks.release.set()
    await asyncio.gather(*attempts)
    assert (await sign_in(api, "192.0.2.7", "alice")).status_code == 200


@pytest.mark.parametrize(
    "addresses", [["192.0.2.9"], ["2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:0:7::"]]
)
async def test_a_network_has_an_allowance_of_failures(
    api: Api, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api.app.state.services.sign_in_limit._buckets, "_refill_per_second", 1e-6)
    await api.quick_client("alice", Role.USER)
    answers = [
        await sign_in(api, addresses[number % len(addresses)], f"nobody-{number}")
        for number in range(sign_in_limit.FAILURES + 5)
    ]
    statuses = [answer.status_code for answer in answers]
    assert statuses == [401] * sign_in_limit.FAILURES + [429] * 5
    assert int(answers[-1].headers["retry-after"]) > 0
    assert (await sign_in(api, "2001:db8:0:1::1", "nobody")).status_code == 401
    assert (await sign_in(api, "192.0.2.10", "alice")).status_code == 200


async def test_successful_sign_ins_cost_no_tokens(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api.app.state.services.sign_in_limit._buckets, "_refill_per_second", 1e-6)
    await api.quick_client("alice", Role.USER)
    for _ in range(sign_in_limit.FAILURES + 5):
        assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200


async def test_known_networks_are_shared_between_processes(
    api: Api, blocked_checks: BlockedPasswordChecks
) -> None:
    await api.quick_client("alice", Role.USER)
    assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200
    app = create_app(api.settings)
    async with app.router.lifespan_context(app):
        other = Api(app, api.engine, api.settings, api.stack)
        known = app.state.services.sign_in_limit._known

        async def is_known() -> bool:
            return KNOWN_ADDRESS in known

        await eventually(is_known, "the other process to read the known networks")
        attempts = flood(other, 100)
        await until(lambda: sum(task.done() for task in attempts) > 80, "the queue to be full")
        assert (await sign_in(other, KNOWN_ADDRESS, "alice")).status_code == 200
        blocked_checks.release.set()
        await asyncio.gather(*attempts)


async def test_one_user_cannot_push_out_the_known_networks_of_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_networks, "MAX_KNOWN", 6)
    monkeypatch.setattr(known_networks, "MAX_PER_USER", 3)
    for name in ("alice", "mallory"):
        await api.quick_client(name, Role.USER)
    assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200
    for number in range(10):
        assert (await sign_in(api, f"2001:db8:0:{number}::1", "mallory")).status_code == 200
    services = api.app.state.services
    restarted = KnownNetworks(services.redis)
    await restarted.refresh()
    for known in (services.sign_in_limit._known, restarted):
        assert KNOWN_ADDRESS in known
        assert [n for n in range(10) if f"2001:db8:0:{n}::/64" in known] == [7, 8, 9]
    assert await services.redis.zcard(known_networks.KEY) == 4


async def test_sign_in_works_without_redis_and_remembers_the_address(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.quick_client("alice", Role.USER)
    services = api.app.state.services
    await services.redis.aclose()
    known = services.sign_in_limit._known
    monkeypatch.setattr(known, "_redis", type(services.redis).from_url("unix:///nowhere/redis.sock"))
    assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200
    assert KNOWN_ADDRESS in known


async def test_a_known_network_signs_in_many_at_once(api: Api) -> None:
    await api.quick_client("alice", Role.USER)
    assert (await sign_in(api, KNOWN_ADDRESS, "alice")).status_code == 200
    answers = await asyncio.gather(*(sign_in(api, KNOWN_ADDRESS, "alice") for _ in range(16)))
    assert {answer.status_code for answer in answers} == {200}
