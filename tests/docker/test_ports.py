"""Ports of a container, through a gateway, at the container's address."""

from codehub.database.gateway_queries import Route
from codehub.domain.states import Operation, Phase
from tests.docker.conftest import RuntimeFixture
from tests.integration.gateway.harness import ALICE, MINE, World, status, world
from tests.waiting import eventually

EVERYWHERE, ON_LOOPBACK = 3000, 3001
NAVIGATION = "Accept: text/html\r\n"


async def ask(made: World, port: int, more: str = "") -> tuple[int, str]:
    head, body = await made.ask(made.entrance(f"/proxy/{port}/healthz", more=more))
    return status(head), body.decode()


async def test_an_app_that_listens_on_all_addresses_is_reached_and_no_other(fixture: RuntimeFixture) -> None:
    fact = await fixture.started("w1")
    assert fact.upstream is not None
    for host, port in (("0.0.0.0", EVERYWHERE), ("127.0.0.1", ON_LOOPBACK)):
        assert fixture.engine.inside("w1", f"httpd -p {host}:{port} -h /www").returncode == 0
    async with world(apps=False) as made:
        made.facts.routes[MINE] = Route(MINE, ALICE, Phase.RUNNING, Operation.NONE, fact.upstream, "tiny")
        made.gateway.revocation.on_route_changed(MINE)
        answer = await eventually(
            lambda: ask(made, EVERYWHERE), "the app to listen", lambda answer: answer[0] != 502
        )
        assert answer == (200, "ok")
        for port in (ON_LOOPBACK, 3002):
            answer, page = await ask(made, port, NAVIGATION)
            assert answer == 502 and f"Nothing listens on port {port}" in page and "0.0.0.0" in page
