"""A cancellation that a driver has turned into an error is not lost."""

import asyncio

import pytest

from codehub.coordinator.endings import end_if_cancelled
from tests.waiting import PATIENCE


async def test_a_loop_that_goes_on_after_errors_still_ends() -> None:
    begun = asyncio.Event()

    async def driver() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise ConnectionResetError from error

    async def loop() -> None:
        while True:
            try:
                await driver()
            except OSError:
                end_if_cancelled()

    task = asyncio.create_task(loop())
    await begun.wait()
    task.cancel()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_time_out_is_no_cancellation() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    end_if_cancelled()
