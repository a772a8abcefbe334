"""The addresses of workspaces."""

from ipaddress import IPv4Address

from codehub.runtimes.docker.networks import SPARES
from tests.docker.conftest import POOL, RuntimeFixture


def index_in_pool(upstream: str | None) -> int:
    host = (upstream or "").removeprefix("tcp:").partition(":")[0]
    return (int(IPv4Address(host)) - int(POOL.network_address)) // 8


async def test_a_freed_address_is_not_soon_reused(fixture: RuntimeFixture) -> None:
    """Not even after a restart of CodeHub: a gateway may use an old route a moment longer."""
    count = POOL.num_addresses // 8
    first = index_in_pool((await fixture.started("w1")).upstream)
    await fixture.runtime.delete("w1")
    runtime = fixture.other_runtime()
    try:
        await runtime.start(fixture.spec("w2"))
        assert index_in_pool((await fixture.ready("w2")).upstream) == (first + 1) % count
        await runtime.delete("w2")
        await runtime.clean_up()
        await runtime.start(fixture.spec("w3"))
        third = index_in_pool((await fixture.ready("w3")).upstream)
        assert (third - first) % count in range(2, 2 + SPARES)
    finally:
        await runtime.close()
