"""Report of `codehub doctor` about the isolation of process workspaces."""

import pytest

from codehub.cli import process_checks
from codehub.cli.findings import Severity
from codehub.domain.states import ErrorReason
from codehub.runtimes.base import RuntimeFailure
from codehub.runtimes.process.cgroup_caps import Cgroups
from codehub.runtimes.process.sandbox import IsolationBarriers
from codehub.runtimes.process.stale_processes import Isolation
from codehub.settings import Settings

WHOLE = IsolationBarriers(
    Isolation.SANDBOX,
    "/usr/bin/bwrap",
    "/usr/bin/setpriv",
    cgroups=Cgroups(2, dict.fromkeys(("cpu", "memory", "pids"), "/sys/fs/cgroup/codehub")),
    slirp="/usr/bin/slirp4netns",
    seccomp="AAAA",
)


def test_full_isolation_is_ok() -> None:
    findings = [
        process_checks.sandbox(WHOLE, False),
        process_checks.system_calls(WHOLE),
        process_checks.network(WHOLE),
        process_checks.caps(WHOLE),
    ]
    assert {finding.severity for finding in findings} == {Severity.OK}


async def test_isolation_that_could_not_be_probed_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def find_barriers() -> IsolationBarriers:
        raise RuntimeFailure(ErrorReason.ActionFailed, "slirp4netns: no answer within 20 s")

    monkeypatch.setattr(process_checks, "find_barriers", find_barriers)
    (finding,) = await process_checks.check_process_runtime(Settings(runtime="process"))
    assert finding.severity is Severity.FAIL and "no answer" in finding.message


@pytest.mark.parametrize(
    ("isolation", "is_accepted", "level"),
    [
        (Isolation.USER, False, Severity.WARN),
        (Isolation.NONE, False, Severity.FAIL),
        (Isolation.NONE, True, Severity.WARN),
    ],
)
def test_the_severity_of_a_missing_sandbox_depends_on_the_remaining_isolation(
    isolation: Isolation, is_accepted: bool, level: Severity
) -> None:
    finding = process_checks.sandbox(
        IsolationBarriers(isolation, None, None, "bubblewrap is missing (...)"), is_accepted
    )
    assert finding.severity is level and "bubblewrap is missing" in finding.message
    assert finding.advice == "apt-get install bubblewrap"


def test_a_shared_network_is_reported_with_its_reason() -> None:
    finding = process_checks.network(
        IsolationBarriers(Isolation.SANDBOX, "b", "s", why_no_network="no tap device")
    )
    assert finding.severity is Severity.WARN and "no tap device" in finding.message


def test_a_missing_filter_of_system_calls_is_reported_with_its_reason() -> None:
    barriers = IsolationBarriers(Isolation.SANDBOX, "b", "s", why_no_seccomp="there is none for riscv64")
    finding = process_checks.system_calls(barriers)
    assert finding.severity is Severity.WARN and "riscv64" in finding.message


def test_missing_caps_are_named() -> None:
    some = Cgroups(1, {"pids": "/p"}, "memory is not mounted")
    finding = process_checks.caps(IsolationBarriers(Isolation.SANDBOX, "b", "s", cgroups=some))
    assert finding.severity is Severity.WARN
    assert "cpu, memory (" in finding.message and "memory is not mounted" in finding.message
