import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import * as live from "../src/state/live";
import { session as signedIn } from "../src/state/session";
import type { Workspace } from "../src/types";
import { session, workspace } from "./samples";

class FakeEventSource extends EventTarget {
  static readonly CLOSED = 2;
  static opened: FakeEventSource[] = [];
  readyState = 1;
  onerror: (() => void) | null = null;
  constructor(readonly url: string) {
    super();
    FakeEventSource.opened.push(this);
  }
  close() {
    this.readyState = 2;
  }
  emit(name: string, data: unknown) {
    this.dispatchEvent(new MessageEvent(name, { data: JSON.stringify(data) }));
  }
}

const stream = () => FakeEventSource.opened.at(-1)!;
const shown = () => [...live.workspaces.value.values()];
const snapshot = (...items: Workspace[]) => stream().emit("snapshot", { items, more: false });

function answerSession(status: number) {
  const body = JSON.stringify(status === 200 ? session : { error: { code: "X", message: "" } });
  vi.stubGlobal(
    "fetch",
    vi.fn(async () => new Response(body, { status })),
  );
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("EventSource", FakeEventSource);
  FakeEventSource.opened = [];
  signedIn.value = session;
  live.startLive();
});

afterEach(() => {
  live.stopLive();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("the live list", () => {
  it("follows snapshot, update and delete", () => {
    snapshot(workspace());
    expect(live.loaded.value).toBe(true);
    stream().emit("workspace_updated", workspace({ phase: "STANDBY" }));
    expect(shown()[0]?.phase).toBe("STANDBY");
    stream().emit("workspace_deleted", { id: workspace().id });
    expect(shown()).toEqual([]);
  });

  it("replaces everything with a new snapshot", () => {
    snapshot(workspace({ id: "a" }));
    snapshot(workspace({ id: "b" }));
    expect(shown().map((item) => item.id)).toEqual(["b"]);
  });

  it("shows a snapshot in batches once it is complete", () => {
    snapshot(workspace({ id: "old" }));
    stream().emit("snapshot", { items: [workspace({ id: "a" })], more: true });
    expect(shown().map((item) => item.id)).toEqual(["old"]);
    snapshot(workspace({ id: "b" }));
    expect(shown().map((item) => item.id)).toEqual(["a", "b"]);
  });

  it("drops the batches of an incomplete snapshot", () => {
    stream().emit("snapshot", { items: [workspace({ id: "stale" })], more: true });
    stream().onerror?.();
    snapshot(workspace({ id: "fresh" }));
    expect(shown().map((item) => item.id)).toEqual(["fresh"]);
  });

  it("drops a response that is older than an event", () => {
    snapshot(workspace({ phase: "STANDBY", version: 2 }));
    live.applyWorkspace(workspace({ phase: "RUNNING", version: 1 }));
    expect(shown()[0]?.phase).toBe("STANDBY");
  });

  it("does not add another user's workspace that an admin acted on", () => {
    snapshot();
    live.applyWorkspace(workspace({ owner: { id: "someone-else", username: "x" } }));
    expect(shown()).toEqual([]);
  });

  it("announces a change of state, not of progress", () => {
    snapshot(workspace({ operation: "ARCHIVING", phase: "STANDBY" }));
    stream().emit("workspace_updated", workspace({ operation: "NONE", phase: "ARCHIVED" }));
    expect(live.announcement.value).toBe("api-server: Archived");
    live.announcement.value = "";
    stream().emit(
      "workspace_updated",
      workspace({ phase: "ARCHIVED", progress: { bytes: 1, total: 2, files: 1 } }),
    );
    expect(live.announcement.value).toBe("");
  });
});

describe("the connection", () => {
  it("is reported lost after a moment, and live again with the next event", () => {
    snapshot();
    expect(live.connection.value).toBe("live");
    stream().onerror?.();
    expect(live.connection.value).toBe("live");
    vi.advanceTimersByTime(2_000);
    expect(live.connection.value).toBe("lost");
    snapshot();
    expect(live.connection.value).toBe("live");
  });

  it("is reopened after the server rejected it", async () => {
    answerSession(503);
    stream().close();
    stream().onerror?.();
    await vi.advanceTimersByTimeAsync(1_500);
    expect(FakeEventSource.opened).toHaveLength(2);
  });

  it("is not reopened when the session has ended", async () => {
    answerSession(401);
    stream().close();
    stream().onerror?.();
    await vi.advanceTimersByTimeAsync(30_000);
    expect(FakeEventSource.opened).toHaveLength(1);
    expect(signedIn.value).toBeNull();
    expect(location.pathname).toBe("/login");
  });

  it("is reopened when heartbeats are missing", async () => {
    snapshot();
    await vi.advanceTimersByTimeAsync(76_000);
    expect(FakeEventSource.opened).toHaveLength(2);
  });
});
