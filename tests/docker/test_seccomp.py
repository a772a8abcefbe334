"""Denied system calls of a container, and images without the profile."""

from __future__ import annotations

from dataclasses import replace

from tests.docker.conftest import TINY_IMAGE, RuntimeFixture
from tests.system_calls import (
    Calls,
    allowed_calls,
    answers,
    clone3,
    command,
    copy_perl,
    denied_calls,
    other_results,
)


def calls_inside(fixture: RuntimeFixture, calls: Calls) -> dict[str, str]:
    perl = copy_perl(fixture.homes / "w1")
    done = fixture.engine.inside("w1", f"cd /home/coder && {command(calls, perl)}")
    assert done.returncode == 0, done.stderr.decode()
    return answers(done.stdout.decode())


async def test_denied_calls_are_refused_and_debuggers_work(fixture: RuntimeFixture) -> None:
    await fixture.started("w1")
    results = calls_inside(fixture, denied_calls())
    assert set(results) == set(denied_calls())
    assert other_results(results, "EPERM") == {}
    assert calls_inside(fixture, clone3()) == {"clone3": "ENOSYS"}
    assert other_results(calls_inside(fixture, allowed_calls()), "") == {}


async def test_an_unconfined_image_can_make_all_calls(fixture: RuntimeFixture) -> None:
    await fixture.started("w1", image=replace(TINY_IMAGE, seccomp="unconfined"))
    results = calls_inside(fixture, denied_calls())
    assert {"unshare", "setns", "keyctl", "io_uring_enter", "mbind"} <= set(other_results(results, "EPERM"))
