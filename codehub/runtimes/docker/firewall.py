"""What leaves a workspace's network: the internet may be reached, the host and its neighbours not.

The rules stand in the mangle table's PREROUTING, before routing decides between the host (INPUT) and the way
out (FORWARD). So one chain holds for both, the engine, which orders and re-orders its own chains in
the filter table, never touches it, and a restart of the engine leaves it in place.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.docker.network import interface_prefix
from codehub.runtimes.egress import DENIED, Egress

_WAIT = ("-w", "10")
_PATIENCE = 20.0


def chain_name(installation_id: str) -> str:
    return f"CODEHUB-{interface_prefix(installation_id)}"


def chain_text(chain: str, pool: str, egress: Egress) -> str:
    """The chain, for `iptables-restore --noflush`: replaced as a whole, never half there."""
    rules = ["-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"]
    rules += [f"-p tcp -m addrtype --dst-type LOCAL -m tcp --dport {egress.public_port} -j RETURN"]
    for server in egress.nameservers:
        rules += [f"-d {server} -p {kind} -m {kind} --dport 53 -j RETURN" for kind in ("udp", "tcp")]
    rules += [f"-d {network} -j RETURN" for network in egress.addresses]
    rules += ["-m addrtype --dst-type LOCAL -j DROP"]
    rules += [f"-d {network} -j DROP" for network in (pool,) if network not in egress.allowed]
    rules += [f"-d {network} -j RETURN" for network in egress.allowed]
    rules += [f"-d {network} -j DROP" for network in DENIED]
    lines = [f"-A {chain} {rule}" for rule in rules]
    return "\n".join(["*mangle", f":{chain} - [0:0]", *lines, "COMMIT", ""])


class Firewall:
    def __init__(self, installation_id: str, pool: str, egress: Egress) -> None:
        self._chain = chain_name(installation_id)
        self._bridges = f"{interface_prefix(installation_id)}+"
        self._text = chain_text(self._chain, pool, egress)
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
        await self._jump("iptables", self._chain)
        if Path("/proc/net/if_inet6").exists():
            # Workspaces have no IPv6, but for the link-local addresses that the kernel gives by itself.
            await self._jump("ip6tables", "DROP")

    async def _jump(self, program: str, target: str) -> None:
        rule = ("PREROUTING", "-i", self._bridges, "-j", target)
        code, _ = await _try((program, *_WAIT, "-t", "mangle", "-C", *rule))
        if code != 0:
            await _run((program, *_WAIT, "-t", "mangle", "-I", *rule))


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
