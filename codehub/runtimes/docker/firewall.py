"""Firewall of the workspaces' networks, in the mangle table of iptables (ADR 0010).

Workspaces reach the internet, but neither the host nor its networks. Only CodeHub reaches
workspaces, because an IDE has no password.

Outgoing packets are filtered in PREROUTING, before routing chooses between the host (INPUT) and
other machines (FORWARD). So one chain covers both. The engine, which reorders its own chains in the
filter table, does not touch it, and it survives a restart of the engine. Incoming packets are
filtered in the same table: from other machines in FORWARD, from this one in OUTPUT, by user.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.docker.networks import interface_prefix
from codehub.runtimes.egress import DENIED_NETWORKS, Egress

_WAIT = ("-w", "10")
_TIMEOUT_SECONDS = 20.0
_REPLIES = "-m conntrack --ctstate ESTABLISHED,RELATED"
# In the spelling that `iptables -S` prints.
_NOT_REPLIES = ("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED")


def chain_name(installation_id: str) -> str:
    return f"CODEHUB-{interface_prefix(installation_id)}"


def chains_text(chain: str, pool: str, egress: Egress, clients: Iterable[int]) -> str:
    """Return the chains for `iptables-restore --noflush`, which replaces them atomically."""
    chains = {
        chain: _rules_for_outgoing(pool, egress),
        _output_chain(chain): _rules_for_local_clients(clients),
    }
    names = [f":{name} - [0:0]" for name in chains]
    lines = [f"-A {name} {rule}" for name, rules in chains.items() for rule in rules]
    return "\n".join(["*mangle", *names, *lines, "COMMIT", ""])


def _output_chain(chain: str) -> str:
    return f"{chain}-OWN"


def _rules_for_local_clients(clients: Iterable[int]) -> list[str]:
    users = [f"-m owner --uid-owner {uid} -j RETURN" for uid in sorted(set(clients))]
    return [f"{_REPLIES} -j RETURN", *users, "-j DROP"]


def _rules_for_outgoing(pool: str, egress: Egress) -> list[str]:
    rules = [f"{_REPLIES} -j RETURN"]
    rules += [f"-p tcp -m addrtype --dst-type LOCAL -m tcp --dport {egress.public_port} -j RETURN"]
    for server in egress.nameservers:
        rules += [f"-d {server} -p {kind} -m {kind} --dport 53 -j RETURN" for kind in ("udp", "tcp")]
    rules += [f"-d {network} -j RETURN" for network in egress.addresses]
    rules += ["-m addrtype --dst-type LOCAL -j DROP"]
    rules += [f"-d {network} -j DROP" for network in (pool,) if network not in egress.allowed]
    rules += [f"-d {network} -j RETURN" for network in egress.allowed]
    return rules + [f"-d {network} -j DROP" for network in DENIED_NETWORKS]


class Firewall:
    """The rules of one installation. `clients` are the user ids that may connect to workspaces."""

    def __init__(self, installation_id: str, pool: str, egress: Egress, clients: Iterable[int]) -> None:
        self._chain = chain_name(installation_id)
        self._bridges = f"{interface_prefix(installation_id)}+"
        self._text = chains_text(self._chain, pool, egress, clients)
        self._lock = asyncio.Lock()
        self._ensured_at = float("-inf")

    async def check(self) -> None:
        """Raise RuntimeFailure if this process cannot use iptables."""
        await _run_iptables(("iptables", *_WAIT, "-t", "mangle", "-S", "PREROUTING"))

    async def ensure(self) -> None:
        """Install missing rules. A caller that waited for another call is done with it."""
        asked_at = time.monotonic()
        async with self._lock:
            if self._ensured_at >= asked_at:
                return
            began = time.monotonic()
            await self._install()
            self._ensured_at = began

    async def _install(self) -> None:
        await _run_iptables(("iptables-restore", *_WAIT, "--noflush"), self._text)
        leaving, entering = ("-i", self._bridges), ("-o", self._bridges)
        await _insert_missing(
            "iptables",
            ("PREROUTING", *leaving, "-j", self._chain),
            # PREROUTING has already filtered what one workspace sends to another.
            ("FORWARD", "!", *leaving, *entering, *_NOT_REPLIES, "-j", "DROP"),
            ("OUTPUT", *entering, "-j", _output_chain(self._chain)),
        )
        if Path("/proc/net/if_inet6").exists():
            # Workspaces have no IPv6 but the link-local addresses that the kernel assigns.
            await _insert_missing("ip6tables", ("PREROUTING", *leaving, "-j", "DROP"))


async def _insert_missing(program: str, *rules: Sequence[str]) -> None:
    """List the rules once. Check a rule again that is missing: it may be listed in another form."""
    table = (program, *_WAIT, "-t", "mangle")
    _, shown = await _execute((*table, "-S"))
    for rule in rules:
        if f"-A {' '.join(rule)} -A" in f"{shown} -A":
            continue
        code, _ = await _execute((*table, "-C", *rule))
        if code != 0:
            await _run_iptables((*table, "-I", *rule))


async def _run_iptables(command: Sequence[str], text: str = "") -> None:
    code, output = await _execute(command, text)
    if code != 0:
        raise RuntimeFailure(
            ErrorReason.ActionFailed,
            f"the firewall for workspaces cannot be installed ({command[0]}: {output}): "
            "CodeHub needs root and iptables for it. With DOCKER_FIREWALL=false you provide it yourself",
        )


async def _execute(command: Sequence[str], text: str = "") -> tuple[int, str]:
    try:
        # Not asyncio's subprocesses: under uvloop they raise if one ends before its input was
        # written.
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return 127, "not installed"
    except subprocess.TimeoutExpired:
        return 124, f"no result within {_TIMEOUT_SECONDS:g} s"
    return done.returncode, " ".join(done.stdout.decode(errors="replace").split())
