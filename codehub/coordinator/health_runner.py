"""Health checks that only the leader can make. Every other part reads the recorded results."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from codehub.coordinator.gc_runner import GcRunner
from codehub.coordinator.leader_interfaces import LeaderDatabase
from codehub.coordinator.provider_interfaces import Providers
from codehub.domain.disk import Reserve, shortages
from codehub.domain.health_checks import CheckName, CheckResult
from codehub.runtimes.base import RuntimeUnobservable
from codehub.storage.errors import StorageProblem

logger = structlog.get_logger(__name__)

CHECK_TIMEOUT = 10.0
"""Seconds for one check."""
SAVE_EVERY = 60.0
"""Seconds between two writes while nothing changes. Readers trust a result for three minutes."""

Probe = Callable[[], Awaitable[str]]
"""Returns a message about what works, or raises an error about what does not."""


class CheckFailed(Exception):  # noqa: N818 - a fact, not a fault
    """Negative result of a check."""


class HealthRunner:
    def __init__(
        self, database: LeaderDatabase, providers: Providers, gc: GcRunner, disk_reserve: Reserve
    ) -> None:
        self._database = database
        self._providers = providers
        self._gc = gc
        self._disk_reserve = disk_reserve
        self._probes: Mapping[CheckName, Probe] = {
            CheckName.ARCHIVES: self._archives,
            CheckName.VOLUMES: self._volumes,
            CheckName.RUNTIME: self._runtime,
            CheckName.DISK: self._disk,
        }
        self._running: dict[CheckName, asyncio.Future[str]] = {}
        self._saved: Mapping[CheckName, CheckResult] | None = None
        self._saved_at: float | None = None

    async def tick(self) -> Mapping[CheckName, CheckResult]:
        """Run every check. Save the results if one has changed or the saved ones are old."""
        if self._saved is None:
            self._saved = await self._database.health_checks()
        verdicts = await asyncio.gather(*(self._check(name) for name in self._probes))
        found = dict(zip(self._probes, verdicts, strict=True)) | {CheckName.GC: self._check_gc(self._saved)}
        now = asyncio.get_running_loop().time()
        if self._saved_at is None or _has_changed(self._saved, found) or now - self._saved_at >= SAVE_EVERY:
            await self._database.save_health_checks(found)
            self._saved, self._saved_at = found, now
        return found

    def close(self) -> None:
        """Cancel checks that still run."""
        for probe in self._running.values():
            probe.cancel()

    async def _check(self, name: CheckName) -> CheckResult:
        """Wait a limited time for one check. A check that hangs is not started a second time."""
        probe = self._running.get(name)
        if probe is None:
            probe = self._running[name] = asyncio.ensure_future(self._probes[name]())
        done, _ = await asyncio.wait({probe}, timeout=CHECK_TIMEOUT)
        if not done:
            return CheckResult(False, f"No answer within {CHECK_TIMEOUT:.0f} s.")
        del self._running[name]
        try:
            return CheckResult(True, probe.result())
        except (CheckFailed, StorageProblem, RuntimeUnobservable, OSError) as error:
            return CheckResult(False, str(error))
        except Exception as error:  # of a driver, for example: the other results must not be lost
            logger.exception("a health check failed", check=name.value)
            return CheckResult(
                False, f"The check failed ({type(error).__name__}): see the coordinator's log."
            )

    async def _archives(self) -> str:
        await self._providers.archives.check()
        return "The archive store answers, and belongs to this installation."

    async def _volumes(self) -> str:
        await self._providers.volumes.check()
        return "The disk of the homes is mounted, and belongs to this installation."

    async def _runtime(self) -> str:
        await self._providers.runtime.ping()
        return f"The {self._providers.runtime.name} runtime answers."

    async def _disk(self) -> str:
        free, reserve = await self._providers.volumes.free_space(), self._disk_reserve
        numbers = f"{free.bytes >> 20} MiB free on the disk of the homes, {reserve.bytes >> 20} MiB reserved"
        if free.files is not None:
            numbers = f"{numbers}; room for {free.files:,} more files, {reserve.files:,} reserved"
        if shortages(free, reserve):
            raise CheckFailed(f"{numbers}: starts and restores wait.")
        return f"{numbers}."

    def _check_gc(self, saved: Mapping[CheckName, CheckResult]) -> CheckResult:
        """Return the GC alarm. Until GC has run in this term, keep the alarm of the earlier leader."""
        if self._gc.alarms is None:
            return saved.get(CheckName.GC, CheckResult(True, "GC has not run yet."))
        if self._gc.alarms:
            return CheckResult(False, " ".join(self._gc.alarms))
        return CheckResult(True, "The last GC cycle raised no alarm.")


def _has_changed(saved: Mapping[CheckName, CheckResult], found: Mapping[CheckName, CheckResult]) -> bool:
    """Return whether a check has turned good or bad. A new message alone needs no write."""
    return any(name not in saved or saved[name].ok != verdict.ok for name, verdict in found.items())
