"""Files that an agent reads and changes, on a whole system."""

import asyncio
import re

from codehub.client import Workspace
from codehub.mcp import file_tools, texts
from tests.mcp_agent import Agent, connected
from tests.services import System


async def test_files_are_read_and_changed(system: System, token: str, demo: Workspace) -> None:
    async with connected(system, token, "-w", demo.id) as agent:
        lines = [f"line {n}\n" for n in range(1, 10_001)]
        wrote = await agent("write_file", path="new/deep/file.txt", content="".join(lines))
        assert "Wrote new/deep/file.txt" in wrote
        text, first = "", 1
        while first:
            part = await agent("read_file", path="new/deep/file.txt", first_line=first, max_lines=2000)
            head, _, rest = part.partition("\n")
            assert len(rest) <= texts.MOST_BYTES + texts.MOST_LINE_BYTES
            text += rest
            more = re.search(r"first_line=(\d+)", head)
            first = int(more[1]) if more else 0
        assert text == "".join(lines)

        refused = await agent.failed("write_file", path="new/deep/file.txt", content="x")
        assert "exists" in refused and "read_file" in refused
        etag = re.search(r"etag (\S+)", wrote)[1]  # type: ignore[index]
        assert "8 bytes" in await agent(
            "write_file", path="new/deep/file.txt", content="a\nb\nb\n\u00e9", etag=etag, mode="755"
        )
        assert demo.files.stat("new/deep/file.txt").mode.endswith("755")
        stale = await agent.failed("write_file", path="new/deep/file.txt", content="y", etag=etag)
        assert stale.startswith("PRECONDITION_FAILED: ") and "read_file" in stale

        edit = {"path": "new/deep/file.txt", "old_text": "b\n", "new_text": "c\n"}
        assert "2 times" in await agent.failed("edit_file", **edit)
        assert "Replaced 2" in await agent("edit_file", **edit, replace_all=True)
        assert "not in the file" in await agent.failed("edit_file", **edit)
        demo.run("ln -s new/deep/file.txt link")
        assert "Replaced 1" in await agent("edit_file", path="link", old_text="\u00e9", new_text="e")
        assert demo.files.read("new/deep/file.txt") == b"a\nc\nc\ne"
        assert demo.files.stat("link").kind == "symlink"

        assert "deep" in await agent("list_files", path="new")
        assert "deep/file.txt" in await agent("list_files", path="new", depth=2)
        assert "file.txt:1: a" in await agent("search_files", query="a", path="new")
        assert "deep/file.txt" in await agent("search_files", query="FILE", path="new", where="names")
        demo.run("head -c 100 /dev/zero > zeros")
        assert "not a text file" in await agent.failed("read_file", path="zeros")
        assert "directory" in await agent.failed("read_file", path="new")
        assert (await agent.failed("read_file", path="missing")).startswith("NOT_FOUND: ")
        assert (await agent.failed("read_file", path="/etc/shadow")).startswith("FORBIDDEN: ")


async def test_lists_are_bounded_and_go_on(system: System, token: str, demo: Workspace) -> None:
    count = 2 * file_tools.LISTED + 5
    demo.run(f"mkdir many; cd many; for n in $(seq {count}); do echo needle > f$n; done")
    async with connected(system, token, "-w", demo.id) as agent:
        for tool, arguments, most in (
            ("list_files", {"path": "many"}, file_tools.LISTED),
            ("search_files", {"path": "many", "query": "needle"}, file_tools.MATCHES),
        ):
            seen: list[str] = []
            offset: int | None = 0
            while offset is not None:
                lines = (await agent(tool, **arguments, offset=offset)).splitlines()
                more = re.search(r"offset=(\d+)", lines[-1])
                offset = int(more[1]) if more else None
                found = lines[:-1] if more else lines
                assert len(found) <= most
                seen += [re.search(r"f\d+", each)[0] for each in found]  # type: ignore[index]
            assert sorted(seen) == sorted(f"f{n}" for n in range(1, count + 1))


async def test_concurrent_edits_are_all_kept(system: System, token: str, demo: Workspace) -> None:
    """Two agents change different lines of one file at the same time."""
    count = 6
    demo.files.write("shared", "".join(f"todo {n}\n" for n in range(2 * count)))
    async with connected(system, token, "-w", demo.id) as one, connected(system, token, "-w", demo.id) as two:

        async def edit(agent: Agent, numbers: range) -> None:
            for n in numbers:
                await agent("edit_file", path="shared", old_text=f"todo {n}\n", new_text=f"done {n}\n")

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(edit(one, range(0, 2 * count, 2)))
            tasks.create_task(edit(two, range(1, 2 * count, 2)))
    assert demo.files.read("shared").decode() == "".join(f"done {n}\n" for n in range(2 * count))
