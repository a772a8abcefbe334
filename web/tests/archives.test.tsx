import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Archives } from "../src/components/Archives";
import { DialogHost } from "../src/dialogs/DialogHost";
import { closeDialog } from "../src/state/dialogs";
import type { Workspace } from "../src/types";
import { actionsFor } from "../src/workspace";
import { detailed, workspace } from "./samples";

const OLDER = { archive_op_id: "01older", created_at: "2026-01-01T00:00:00Z", bytes: 10, current: false };
const NEWER = { archive_op_id: "01newer", created_at: "2026-02-01T00:00:00Z", bytes: 20, current: true };
const page = document.createElement("div");
const all = (id: string) => [...page.querySelectorAll<HTMLElement>(`[data-testid=${id}]`)];
let calls: [string, string | undefined][];

async function show(changes: Partial<Workspace>, isOwner = true): Promise<void> {
  const shown = (
    <>
      <Archives workspace={workspace(changes)} isOwner={isOwner} />
      <DialogHost />
    </>
  );
  await act(async () => render(shown, page));
  await vi.waitFor(() => expect(all("archive").length).toBe(2));
}

beforeEach(() => {
  calls = [];
  HTMLDialogElement.prototype.showModal = () => {};
  HTMLDialogElement.prototype.close = () => {};
  vi.stubGlobal(
    "fetch",
    vi.fn((url: string, options: RequestInit) => {
      calls.push([url, options.body as string | undefined]);
      const body = url.endsWith("/archives") ? { items: [NEWER, OLDER] } : detailed({ phase: "STANDBY" });
      return Promise.resolve(Response.json(body));
    }),
  );
});

afterEach(() => {
  act(() => closeDialog());
  act(() => render(null, page));
  vi.unstubAllGlobals();
});

describe("the archives of a workspace", () => {
  it("are restored after a confirmation that says what happens", async () => {
    await show({ phase: "STANDBY", desired_state: "STANDBY" });
    expect(all("archive").map((row) => row.dataset.current)).toEqual(["true", "false"]);
    act(() => all("restore-archive")[1]!.click());
    expect(page.textContent).toContain("First, the present home is archived");
    expect(calls.length).toBe(1);
    await act(
      async () => void page.querySelector("form")!.dispatchEvent(new Event("submit", { bubbles: true })),
    );
    const path = `/api/v1/workspaces/${workspace().id}/restore`;
    expect(calls[1]).toEqual([path, JSON.stringify({ archive_op_id: "01older" })]);
  });

  it.each([
    ["of a running workspace", { phase: "RUNNING", desired_state: "RUNNING" }, true],
    ["during an operation", { phase: "STANDBY", desired_state: "STANDBY", operation: "ARCHIVING" }, true],
    ["while one waits", { phase: "STANDBY", desired_state: "STANDBY", archive_to_restore: "01older" }, true],
    ["by an admin", { phase: "STANDBY", desired_state: "STANDBY" }, false],
  ] as const)("cannot be restored %s", async (_when, changes, isOwner) => {
    await show(changes, isOwner);
    expect(all("restore-archive")).toEqual([]);
  });

  it("are downloaded by their owner in any phase, and by nobody else", async () => {
    await show({ phase: "RUNNING", desired_state: "RUNNING" });
    const path = `/api/v1/workspaces/${workspace().id}/archive?archive_op_id=`;
    expect(all("download-archive").map((link) => link.getAttribute("href"))).toEqual([
      `${path}01newer`,
      `${path}01older`,
    ]);
    act(() => render(null, page));
    await show({ phase: "RUNNING", desired_state: "RUNNING" }, false);
    expect(all("download-archive")).toEqual([]);
  });

  it("that wait to be restored can be cancelled", () => {
    const waiting = workspace({ phase: "STANDBY", desired_state: "STANDBY", archive_to_restore: "01older" });
    expect(actionsFor(waiting, "owner")).toEqual(["cancel", "delete"]);
  });
});
