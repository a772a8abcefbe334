"""The files on the host for a container."""

from tests.docker.conftest import RuntimeFixture


def workspaces_with_files(fixture: RuntimeFixture) -> set[str]:
    return {entry.name for entry in (fixture.homes / ".docker").iterdir() if entry.is_dir()}


async def test_a_delete_removes_the_files_of_the_container(fixture: RuntimeFixture) -> None:
    for name in ("w1", "w2"):
        await fixture.started(name)
    assert workspaces_with_files(fixture) == {"w1", "w2"}
    await fixture.runtime.delete("w1")
    assert workspaces_with_files(fixture) == {"w2"}
    assert b"coder" in fixture.engine.inside("w2", "cat /etc/passwd").stdout


async def test_the_files_of_a_container_that_was_removed_by_hand_are_removed(fixture: RuntimeFixture) -> None:
    for name in ("w1", "w2"):
        await fixture.started(name)
    fixture.engine.docker("rm", "--force", "codehub-ws-w1")
    await fixture.runtime.clean_up()
    assert workspaces_with_files(fixture) == {"w2"}
    await fixture.started("w1", attempt="op-1")
    await fixture.runtime.stop("w2")
    await fixture.runtime.clean_up()
    assert workspaces_with_files(fixture) == {"w1", "w2"}


async def test_released_resources_leave_no_files(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    fixture.engine.docker("rm", "--force", "codehub-ws-w1")
    await fixture.runtime.release_resources()
    assert workspaces_with_files(fixture) == set()
