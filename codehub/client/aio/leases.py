"""LeaseList: they keep a running workspace awake until a time."""

from collections.abc import Sequence

from codehub.client.aio.calls import AsyncCalls
from codehub.client.models import Lease, LeaseList
from codehub.client.requests import Request, get, segment


class AsyncLeases:
    """The leases of a workspace."""

    def __init__(self, calls: AsyncCalls, path: str) -> None:
        self._calls = calls
        self._path = f"{path}/leases"

    async def create(self, seconds: int, reason: str) -> Lease:
        """Keep a running workspace awake. Its owner sees the reason."""
        body = {"seconds": seconds, "reason": reason}
        return await self._calls.fetch(Lease, Request("POST", self._path, json=body))

    async def list(self) -> Sequence[Lease]:
        return [*(await self._calls.fetch(LeaseList, get(self._path))).items]

    async def renew(self, lease_id: str, seconds: int) -> Lease:
        """Let a lease expire this many seconds from now."""
        path = f"{self._path}/{segment(lease_id, 'lease')}"
        request = Request("PUT", path, json={"seconds": seconds}, is_repeatable=True)
        return await self._calls.fetch(Lease, request)

    async def delete(self, lease_id: str) -> None:
        path = f"{self._path}/{segment(lease_id, 'lease')}"
        await self._calls.send(Request("DELETE", path, is_repeatable=True))
