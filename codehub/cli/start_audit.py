"""Audit log entries of a part that starts: limits, and settings that weaken security."""

from codehub.cli import requirements
from codehub.clock import utc_now
from codehub.database import audit
from codehub.database.engine import create_engine
from codehub.domain.audit import Action, Actor, ActorKind, Target, TargetKind
from codehub.domain.weak_settings import WEAKNESSES_OF_PART, Weakness
from codehub.settings import Settings


async def record_start(settings: Settings, part: str, *, is_root: bool) -> None:
    """Record what differs from the last start of this part. `is_root`: the part runs as root."""
    engine = create_engine(settings.database_url)
    actor, now = Actor(ActorKind.SYSTEM, part), utc_now()
    try:
        if part == "api":
            await audit.record_if_changed(
                engine,
                actor,
                Action.LIMITS_CHANGED,
                Target(TargetKind.SETTINGS, None, "limits"),
                now,
                max_running_per_user=settings.limits_max_running_per_user,
                max_running_global=settings.limits_max_running_global,
                max_workspaces_per_user=settings.limits_max_workspaces_per_user,
                max_archive_bytes_per_user=settings.limits_max_archive_bytes_per_user,
            )
        target = Target(TargetKind.SETTINGS, None, part)
        if weak := _weaknesses(settings, part, is_root=is_root):
            await audit.record_if_changed(engine, actor, Action.SECURITY_WEAKENED, target, now, settings=weak)
        else:
            await audit.record_if_changed(
                engine, actor, Action.SECURITY_RESTORED, target, now, is_default=True
            )
    finally:
        await engine.dispose()


def _weaknesses(settings: Settings, part: str, *, is_root: bool) -> tuple[str, ...]:
    found = set(settings.weaknesses)
    if is_root:
        found |= {Weakness.API_AS_ROOT, Weakness.GATEWAY_AS_ROOT}
        if settings.runtime == "process":  # on Docker, the access part needs the engine's socket
            found.add(Weakness.ACCESS_AS_ROOT)
    if part == "coordinator" and _has_unconfined_image(settings):
        found.add(Weakness.UNCONFINED_IMAGE)
    return tuple(item.value for item in Weakness if item in found & WEAKNESSES_OF_PART[part])


def _has_unconfined_image(settings: Settings) -> bool:
    return any(image.seccomp == "unconfined" for image in requirements.offered_images(settings).values())
