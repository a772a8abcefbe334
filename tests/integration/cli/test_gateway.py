"""`codehub serve gateway` with several workers has one set of metrics, which survives a worker."""

import json
import os
import signal

import httpx
from prometheus_client.parser import text_string_to_metric_families

from codehub import internal_http
from codehub.database import installation
from codehub.database.engine import create_engine
from tests.integration.cli.conftest import Program, outcome, program
from tests.services import descendants, free_port
from tests.waiting import PATIENCE, wait_for

REQUESTS = 40
READY = '"event": "ready"'


def value(address: str, name: str, **labels: str) -> float:
    status, body = internal_http.get(address, "/metrics", PATIENCE)
    assert status == 200
    families = text_string_to_metric_families(body.decode())
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return sum(each.value for each in samples if labels.items() <= each.labels.items())


def workers_of(gateway: Program) -> list[int]:
    return descendants(gateway.process.pid)


async def test_metrics_cover_all_workers_and_survive_one(database_url: str, redis_url: str) -> None:
    engine = create_engine(database_url)
    await installation.load_or_create_installation(engine, "an-installation", 2_000_000)
    await engine.dispose()
    port = free_port()
    environment = {"DATABASE_URL": database_url, "REDIS_URL": redis_url, "PORT": str(port)}
    with program("serve", "gateway", GATEWAY_WORKERS="2", **environment) as gateway:
        address = f"unix:{gateway.data_dir}/data/run/gateway-internal.sock"
        wait_for(lambda: gateway.stderr().count(READY) == 2, "both workers to be ready")

        def send_requests() -> None:
            """Send requests. This gateway has no API, so each request fails at the upstream."""
            for _ in range(REQUESTS):
                assert httpx.get(f"http://localhost:{port}/api/v1/session").status_code == 502

        def failures() -> float:
            return value(address, "codehub_gateway_requests_total", outcome="upstream_failed")

        send_requests()
        assert failures() == value(address, "codehub_gateway_connections_total") == REQUESTS
        status, body = internal_http.get(address, "/readyz", PATIENCE)
        assert status == 503 and not json.loads(body)["checks"]["coordinator"]["ok"]

        held = httpx.Client(base_url=f"http://localhost:{port}")
        held.get("/api/v1/session")
        for victim in workers_of(gateway):
            count = gateway.stderr().count(READY)
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: gateway.stderr().count(READY) > count, "the worker to be replaced")  # noqa: B023
        assert failures() == REQUESTS + 1
        assert value(address, "codehub_gateway_open_connections") == 0
        send_requests()
        assert failures() == 2 * REQUESTS + 1
        held.close()


async def test_an_internal_address_in_use_ends_the_start(database_url: str, redis_url: str) -> None:
    port = free_port()
    services = {"DATABASE_URL": database_url, "REDIS_URL": redis_url}
    address = f"tcp:127.0.0.1:{port}"
    with program("serve", "coordinator", INTERNAL_LISTEN=address, **services) as coordinator:
        wait_for(lambda: "this coordinator leads" in coordinator.stderr(), "the coordinator to lead")
        assert internal_http.get(address, "/healthz", PATIENCE)[0] == 200
        ended = outcome(("serve", "api"), {"INTERNAL_LISTEN": address, **services})
        assert ended.code == 1, ended.stderr
        assert "correct INTERNAL_LISTEN" in ended.stderr.splitlines()[-1]
