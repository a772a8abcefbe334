"""What leaves a workspace's network: the internet may be reached, the host and its neighbours not. And what
comes into it: answers, and connections of CodeHub itself. An IDE asks nobody for a password.

What leaves is judged in the mangle table's PREROUTING, before routing decides between the host (INPUT) and
the way out (FORWARD). So one chain holds for both, the engine, which orders and re-orders its own chains in
the filter table, never touches it, and a restart of the engine leaves it in place. What comes in is judged
in the same table: from other machines in FORWARD, from this one, by its user, in OUTPUT.
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
_PATIENCE = 20.0
_ANSWERS = "-m conntrack --ctstate ESTABLISHED,RELATED"
# Written as iptables shows it.
_NO_ANSWERS = ("-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED")


def chain_name(installation_id: str) -> str:
    return f"CODEHUB-{interface_prefix(installation_id)}"


def chains_text(chain: str, pool: str, egress: Egress, clients: Iterable[int]) -> str:
    """The chains, for `iptables-restore --noflush`: replaced as a whole, never half there."""
    chains = {chain: _leaving(pool, egress), _own(chain): _sent_from_here(clients)}
    names = [f":{name} - [0:0]" for name in chains]
    lines = [f"-A {name} {rule}" for name, rules in chains.items() for rule in rules]
    return "\n".join(["*mangle", *names, *lines, "COMMIT", ""])


def _own(chain: str) -> str:
    return f"{chain}-OWN"


def _sent_from_here(clients: Iterable[int]) -> list[str]:
    users = [f"-m owner --uid-owner {uid} -j RETURN" for uid in sorted(set(clients))]
    return [f"{_ANSWERS} -j RETURN", *users, "-j DROP"]


def _leaving(pool: str, egress: Egress) -> list[str]:
    rules = [f"{_ANSWERS} -j RETURN"]
    rules += [f"-p tcp -m addrtype --dst-type LOCAL -m tcp --dport {egress.public_port} -j RETURN"]
    for server in egress.nameservers:
        rules += [f"-d {server} -p {kind} -m {kind} --dport 53 -j RETURN" for kind in ("udp", "tcp")]
    rules += [f"-d {network} -j RETURN" for network in egress.addresses]
    rules += ["-m addrtype --dst-type LOCAL -j DROP"]
    rules += [f"-d {network} -j DROP" for network in (pool,) if network not in egress.allowed]
    rules += [f"-d {network} -j RETURN" for network in egress.allowed]
    return rules + [f"-d {network} -j DROP" for network in DENIED_NETWORKS]


class Firewall:
    """`clients` are the user ids that may connect to workspaces: the coordinator's and the gateway's."""

    def __init__(self, installation_id: str, pool: str, egress: Egress, clients: Iterable[int]) -> None:
        self._chain = chain_name(installation_id)
        self._bridges = f"{interface_prefix(installation_id)}+"
        self._text = chains_text(self._chain, pool, egress, clients)
        self._turn = asyncio.Lock()
        self._ensured_at = float("-inf")

    async def check(self) -> None:
        """A failure when the rules could not be put up."""
        await _run(("iptables", *_WAIT, "-t", "mangle", "-S", "PREROUTING"))

    async def ensure(self) -> None:
        """Put the rules where they belong. Whoever waited while another did has nothing left to do."""
        asked_at = time.monotonic()
        async with self._turn:
            if self._ensured_at >= asked_at:
                return
            began = time.monotonic()
            await self._put_up()
            self._ensured_at = began

    async def _put_up(self) -> None:
        await _run(("iptables-restore", *_WAIT, "--noflush"), self._text)
        leaving, entering = ("-i", self._bridges), ("-o", self._bridges)
        await _put(
            "iptables",
            ("PREROUTING", *leaving, "-j", self._chain),
            # What one workspace sends to another has been judged as it left.
            ("FORWARD", "!", *leaving, *entering, *_NO_ANSWERS, "-j", "DROP"),
            ("OUTPUT", *entering, "-j", _own(self._chain)),
        )
        if Path("/proc/net/if_inet6").exists():
            # Workspaces have no IPv6, but for the link-local addresses that the kernel gives by itself.
            await _put("ip6tables", ("PREROUTING", *leaving, "-j", "DROP"))


async def _put(program: str, *rules: Sequence[str]) -> None:
    """One look tells which are there. One that it shows in other words is asked for by itself."""
    table = (program, *_WAIT, "-t", "mangle")
    _, shown = await _try((*table, "-S"))
    for rule in rules:
        if f"-A {' '.join(rule)} -A" in f"{shown} -A":
            continue
        code, _ = await _try((*table, "-C", *rule))
        if code != 0:
            await _run((*table, "-I", *rule))


async def _run(command: Sequence[str], text: str = "") -> None:
    code, output = await _try(command, text)
    if code != 0:
        raise RuntimeFailure(
            ErrorReason.ActionFailed,
            f"the wall between workspaces and the host's networks cannot be put up ({command[0]}: {output}): "
            "CodeHub needs root and iptables for it; DOCKER_FIREWALL=false leaves it to you",
        )


async def _try(command: Sequence[str], text: str = "") -> tuple[int, str]:
    try:
        # Not the loop's own subprocesses: uvloop's raise when one ends before its input was written.
        done = await asyncio.to_thread(
            subprocess.run,
            command,
            input=text.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PATIENCE,
            check=False,
        )
    except FileNotFoundError:
        return 127, "it is not installed"
    except subprocess.TimeoutExpired:
        return 124, f"it did not end within {_PATIENCE:g} s"
    return done.returncode, " ".join(done.stdout.decode(errors="replace").split())
