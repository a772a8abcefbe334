"""The files that CodeHub keeps on the host for a container."""

from tests.docker.conftest import Bench


def kept(bench: Bench) -> set[str]:
    return {entry.name for entry in (bench.homes / ".docker").iterdir() if entry.is_dir()}


async def test_a_container_that_is_deleted_takes_its_files_along(bench: Bench) -> None:
    for name in ("w1", "w2"):
        await bench.started(name)
    assert kept(bench) == {"w1", "w2"}
    await bench.runtime.delete("w1")
    assert kept(bench) == {"w2"}
    assert b"coder" in bench.engine.inside("w2", "cat /etc/passwd").stdout


async def test_the_files_of_a_container_that_someone_removed_are_tidied_up(bench: Bench) -> None:
    for name in ("w1", "w2"):
        await bench.started(name)
    bench.engine.docker("rm", "--force", "codehub-ws-w1")
    await bench.runtime.tidy()
    assert kept(bench) == {"w2"}
    await bench.started("w1", attempt="op-1")
    await bench.runtime.stop("w2")
    await bench.runtime.tidy()
    assert kept(bench) == {"w1", "w2"}


async def test_nothing_is_kept_where_nothing_will_be_started_any_more(bench: Bench) -> None:
    await bench.started("w1")
    bench.engine.docker("rm", "--force", "codehub-ws-w1")
    await bench.runtime.leave()
    assert kept(bench) == set()
