"""Audit log entries of a part that starts: limits, and settings that weaken security."""

from codehub.clock import utc_now
from codehub.database import audit
from codehub.database.engine import create_engine
from codehub.domain.audit import Action, Actor, ActorKind, Target, TargetKind
from codehub.domain.weak_settings import WEAKNESSES_OF_PART
from codehub.settings import Settings


async def record_start(settings: Settings, part: str) -> None:
    """Record what differs from the last start of this part."""
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
            )
            return
        target = Target(TargetKind.SETTINGS, None, part)
        weak = tuple(item.value for item in settings.weaknesses if item in WEAKNESSES_OF_PART[part])
        if weak:
            await audit.record_if_changed(engine, actor, Action.SECURITY_WEAKENED, target, now, settings=weak)
        else:
            await audit.record_if_changed(
                engine, actor, Action.SECURITY_RESTORED, target, now, is_default=True
            )
    finally:
        await engine.dispose()
