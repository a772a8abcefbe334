"""Checks of the services: whether they answer, and whether their data is this installation's."""

from urllib.parse import urlsplit

from codehub import health_endpoints
from codehub.cli import data_directory, data_lock, requirements
from codehub.cli.findings import Finding, fail, ok, warn
from codehub.database import schema_version
from codehub.domain.cookie_domains import shared_domain
from codehub.domain.health_checks import LEADER_CHECKS, CheckName
from codehub.domain.weak_settings import Weakness
from codehub.embedded import postgres, redis
from codehub.settings import Settings
from codehub.storage.archive.async_archive_store import ArchiveStore
from codehub.storage.errors import Unobservable
from codehub.storage.installation_marker import check_directory


async def check_services(settings: Settings) -> list[Finding]:
    """Check PostgreSQL, Redis and the storage. Embedded servers are checked only while they run."""
    findings = [_running(settings)]
    database_url, redis_url = _urls(settings)
    if database_url is not None:
        findings.append(await _database(database_url))
    if redis_url is not None:
        findings.append(await _redis(redis_url))
    return findings + await _markers(settings)


async def recorded_checks(settings: Settings) -> list[Finding]:
    """Return the checks of the running system, as `/readyz` reports them, if it runs."""
    database_url, redis_url = _urls(settings)
    if not database_url or not redis_url:
        return []
    found = (await health_endpoints.check_readiness(database_url, redis_url)).checks
    if not found[CheckName.SCHEMA].ok:
        return []  # the database's own finding says why
    coordinator = found[CheckName.COORDINATOR]
    if not coordinator.ok:
        return [warn(CheckName.COORDINATOR, coordinator.message, coordinator.remedy)]
    return [
        ok(name, found[name].message)
        if found[name].ok
        else fail(name, found[name].message, found[name].remedy)
        for name in (CheckName.DATABASE_SPACE, CheckName.COORDINATOR, CheckName.STORAGE, *LEADER_CHECKS)
    ]


def _urls(settings: Settings) -> tuple[str | None, str | None]:
    """Return the URLs of PostgreSQL and Redis; None for an embedded one that does not run."""
    if data_lock.holder_pid(settings.data_dir) is None:
        return settings.database_url or None, settings.redis_url or None
    return (
        settings.database_url or postgres.url_of(settings.data_dir) or "",
        settings.redis_url or redis.url_of(settings.data_dir),
    )


def check_exposure(settings: Settings) -> list[Finding]:
    """Check what the settings mean for the security of users."""
    findings = []
    if Weakness.PATH_MODE in settings.weaknesses:
        findings.append(
            warn(
                "origins", "APPS_DOMAIN is empty: code in a workspace can act as its user on the platform",
                "only for trusted users; for others set APPS_DOMAIN to a wildcard domain",
            )
        )  # fmt: skip
    else:
        findings.append(ok("origins", f"each workspace has its own origin below {settings.apps_host}"))
    apps = urlsplit(f"//{settings.apps_host}").hostname or ""
    if domain := shared_domain(settings.public_host, apps):
        findings.append(
            warn(
                "domains",
                f"CodeHub and the workspaces are both below {domain}: a page in a workspace can set so many "
                f"cookies for {domain} that browsers cannot open CodeHub until they are cleared",
                "set APPS_DOMAIN to a registered domain that serves nothing else",
            )
        )
    advice = "set TLS_CERT_FILE and TLS_KEY_FILE, or put a TLS proxy in front (PUBLIC_BASE_URL)"
    if settings.insecure_http:
        findings.append(warn("https", settings.insecure_http_message, advice))
    elif Weakness.PLAIN_HTTP in settings.weaknesses:
        message = f"listens on {settings.host} without https: passwords are sent unencrypted"
        findings.append(warn("https", message, advice))
    if settings.wide_proxies:
        findings.append(
            warn(
                "proxies",
                settings.wide_proxies_message,
                "list only the addresses of the proxies in TRUSTED_PROXIES",
            )
        )
    return findings


def _running(settings: Settings) -> Finding:
    pid = data_lock.holder_pid(settings.data_dir)
    if pid is not None:
        return ok("codehub", f"`codehub up` runs on {settings.data_dir} (process {pid})")
    if settings.database_url:
        return ok("codehub", "uses the services that DATABASE_URL and REDIS_URL name")
    return warn("codehub", f"does not run on {settings.data_dir}", "codehub up")


async def _database(url: str) -> Finding:
    try:
        await requirements.require_database(url)
        await requirements.require_schema(url)
    except schema_version.SchemaError as error:
        return fail("database", str(error))
    except requirements.RequirementError as error:
        return fail("database", error.message, error.advice)
    return ok("database", f"answers, schema {schema_version.head_revision()}")


async def _redis(url: str) -> Finding:
    try:
        version = await requirements.require_redis(url)
    except requirements.RequirementError as error:
        return fail("redis", error.message, error.advice)
    return ok("redis", f"answers, version {version}")


async def _markers(settings: Settings) -> list[Finding]:
    """Check that volumes and archives carry the installation's id; an unmounted disk does not."""
    owner = data_directory.installation_id(settings.data_dir)
    if owner is None:
        return []
    findings = []
    try:
        check_directory(settings.data_dir / "volumes", owner)
        findings.append(ok("volumes", f"{settings.data_dir / 'volumes'} is this installation's"))
    except Unobservable as problem:
        findings.append(fail("volumes", str(problem), "mount the disk that belongs there"))
    try:
        findings.append(await _archives(ArchiveStore(settings.archive_store_url, owner)))
    except Unobservable as problem:
        findings.append(
            fail("archives", str(problem), "mount the disk or start the store that belongs there")
        )
    return findings


async def _archives(store: ArchiveStore) -> Finding:
    await store.check()
    if await store.can_list_unfinished():
        return ok("archives", f"{store.url} is this installation's")
    return warn(
        "archives",
        f"{store.url} is this installation's, but does not list unfinished uploads",
        "add a lifecycle rule to the bucket that aborts them (docs/archives.md)",
    )
