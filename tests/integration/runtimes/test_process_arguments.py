"""What the sandbox's PID 1 shows of the host."""

from __future__ import annotations

from tests.integration.runtimes.conftest import RuntimeFixture

SHOWN = "cat /proc/1/cmdline /proc/1/environ /proc/2/cmdline 2>/dev/null | tr '\\0' '\\n'"


async def test_no_host_path_is_on_a_command_line_inside(fixture: RuntimeFixture) -> None:
    """The path of a home has the data directory and the owner's id.

    Nothing else should show them.
    """
    spec = await fixture.started("w1")
    shown = await fixture.inside("w1", SHOWN)
    assert "bwrap" in shown, "it can be read"
    for secret in (str(fixture.data_dir), fixture.data_dir.name, str(spec.home.parent), "--bind", "--tmpfs"):
        assert secret not in shown
    assert fixture.data_dir.name not in await fixture.inside(
        "w1", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"
    )


async def test_no_descriptor_of_the_sandbox_is_open_inside(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    links = await fixture.inside("w1", "for d in /proc/[0-9]*/fd/*; do readlink $d; done 2>/dev/null")
    assert "socket:" in links, "they can be read"
    assert "memfd" not in links and fixture.data_dir.name not in links


async def test_the_kernel_still_names_the_home_in_the_list_of_mounts(fixture: RuntimeFixture) -> None:
    """A bind mount shows its source, and no program can hide that."""
    spec = await fixture.started("w1")
    mounts = await fixture.inside("w1", "cat /proc/self/mountinfo")
    (home,) = [line for line in mounts.splitlines() if " /home/coder " in line]
    assert spec.home.parent.name in home.split()[3]
