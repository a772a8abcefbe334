"""Output of a process workspace: it costs CodeHub little, and none is lost."""

from __future__ import annotations

import time
from pathlib import Path

from codehub.runtimes.process.output_files import BURST_BYTES, BYTES_PER_SECOND, READ_BYTES
from tests.integration.runtimes.conftest import SERVER, RuntimeFixture, script_image
from tests.waiting import until

FLOOD = """
import os
if os.fork() == 0:
    while True:
        os.write(1, bytes(65536))
"""
LAST_OUTPUT = f"""
import os
for _ in range({BURST_BYTES >> 16} + 3):
    os.write(1, b"x" * 65536)
print("\\nthe end", flush=True)
raise SystemExit(3)
"""
NOISE = READ_BYTES
"""What a keeper writes besides: its state, and a byte for each signal."""


def written_by_keeper(fixture: RuntimeFixture, workspace_id: str) -> int:
    state = fixture.directory(workspace_id).read_state()
    assert state is not None
    lines = Path(f"/proc/{state.keeper.pid}/io").read_text().splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["wchar"])


async def test_a_flood_of_output_is_read_within_a_budget_and_the_ide_goes_on(fixture: RuntimeFixture) -> None:
    before = time.monotonic()
    await fixture.started("w1", script_image(FLOOD + SERVER, "{socket}"))
    enough = BURST_BYTES + READ_BYTES + NOISE
    await until(lambda: written_by_keeper(fixture, "w1") > enough, "the flood to go on after its burst")
    written, seconds = written_by_keeper(fixture, "w1"), time.monotonic() - before
    assert written <= BURST_BYTES + seconds * BYTES_PER_SECOND + READ_BYTES + NOISE
    await fixture.until("w1", lambda fact: fact.ready)
    await fixture.runtime.stop("w1")
    assert (await fixture.runtime.status("w1")).message == "it was stopped"


async def test_the_end_of_output_beyond_the_budget_is_kept(fixture: RuntimeFixture) -> None:
    await fixture.runtime.start(fixture.spec("w1", script_image(LAST_OUTPUT)))
    fact = await fixture.until("w1", lambda fact: not fact.running)
    assert fact.message.startswith("it exited with code 3") and fact.message.endswith("the end")
