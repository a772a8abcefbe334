import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { setLanguage } from "../src/i18n";
import { WorkspacePage } from "../src/pages/WorkspacePage";
import { WorkspacesPage } from "../src/pages/WorkspacesPage";
import { cacheDetail, forgetDetail } from "../src/state/detail";
import { connection, loaded, workspaces } from "../src/state/live";
import { session } from "../src/state/session";
import type { Workspace } from "../src/types";
import { detailed, session as someone, workspace } from "./samples";

const page = document.createElement("div");
const button = (action: string) => page.querySelector<HTMLElement>(`[data-testid=action-${action}]`)!;
const alert = () => page.querySelector("[role=alert]")?.textContent;
const stopped = workspace({ phase: "STANDBY", desired_state: "STANDBY" });

/** Renders the workspace as the server last reported it. */
async function showReported(...items: Workspace[]): Promise<void> {
  workspaces.value = new Map(items.map((item) => [item.id, item]));
  await wait(50);
}

async function become(state: "lost" | "live"): Promise<void> {
  connection.value = state;
  await wait(50);
}

/** Mocks the API: actions get a response, other calls never finish. */
function answer(act: () => Promise<Response>): void {
  const never = new Promise<Response>(() => {});
  vi.stubGlobal("fetch", (_: string, init: RequestInit) => (init.method === "GET" ? never : act()));
}

function refuse(code: string): void {
  const body = JSON.stringify({ error: { code, message: "refused" } });
  answer(async () => new Response(body, { status: 429 }));
}

const wait = (milliseconds: number) =>
  act(async () => void (await vi.advanceTimersByTimeAsync(milliseconds)));

async function press(action: string): Promise<void> {
  button(action).click();
  await wait(50);
}

beforeEach(() => {
  vi.useFakeTimers();
  setLanguage("en");
  session.value = someone;
  loaded.value = true;
  connection.value = "live";
  workspaces.value = new Map([[stopped.id, stopped]]);
});

afterEach(() => {
  act(() => render(null, page));
  forgetDetail();
  vi.unstubAllGlobals();
  vi.useRealTimers();
  workspaces.value = new Map();
});

const VIEWS = { "the list": <WorkspacesPage />, "its own page": <WorkspacePage id={stopped.id} /> };

describe.each(Object.entries(VIEWS))("an action on a workspace, in %s", (_, view) => {
  beforeEach(async () => {
    refuse("RUNNING_LIMIT_EXCEEDED");
    act(() => render(view, page));
    await wait(1_000);
  });

  it("shows the error until its cause is gone", async () => {
    await press("start");
    expect(alert()).toContain("Too many workspaces are running.");
    const others = ["b", "c"].map((id) => workspace({ id }));
    await showReported(stopped, ...others);
    expect(alert()).toContain("Too many workspaces are running.");
    await showReported(stopped, others[0]!);
    expect(alert()).toBeUndefined();
  });

  it("shows an error until the workspace changes", async () => {
    refuse("INVALID_STATE");
    await press("start");
    expect(alert()).toContain("Not possible in this state.");
    await showReported({ ...stopped, operation: "STARTING", desired_state: "RUNNING", version: 2 });
    expect(alert()).toBeUndefined();
  });

  it("shows it in Korean, with the server's English message as a detail", async () => {
    setLanguage("ko");
    await press("start");
    const note = page.querySelector("[role=alert]")!;
    expect(note.querySelector("strong")?.textContent).toBe("실행 중인 워크스페이스가 너무 많습니다.");
    expect(note.querySelector("details:not([open])")?.textContent).toContain("refused");
  });

  it("shows that the server does not respond, until it does", async () => {
    answer(() => Promise.reject(new TypeError("no network")));
    await press("start");
    expect(alert()).toContain("No answer.");
    await become("lost");
    expect(alert()).toContain("No answer.");
    await become("live");
    expect(alert()).toBeUndefined();
  });

  it("ignores a second click on the button that replaced it", async () => {
    const calls = vi.fn(async () => new Response(JSON.stringify(stopped), { status: 200 }));
    await showReported(workspace());
    expect(button("stop").getAttribute("aria-disabled")).toBe("true");
    answer(calls);
    await press("stop");
    expect(calls).not.toHaveBeenCalled();
    await wait(500);
    await press("stop");
    expect(calls).toHaveBeenCalledOnce();
  });
});

describe("an archived workspace's own page", () => {
  it("shows when it was archived, and the size of the archive", async () => {
    const archived = workspace({ phase: "ARCHIVED", desired_state: "ARCHIVED", has_archive: true });
    await showReported(archived);
    cacheDetail(
      detailed({ ...archived, archive: { created_at: "2026-01-02T11:45:00Z", bytes: 168_000 }, home: null }),
    );
    act(() => render(<WorkspacePage id={archived.id} />, page));
    await wait(50);
    expect(page.querySelector("[data-testid=last-archived]")?.textContent).toMatch(/2026.*, 168 KB/);
  });
});

describe("a workspace that was never opened", () => {
  it.each(Object.entries(VIEWS))("has no time of last use, in %s", async (_, view) => {
    answer(async () => new Response("{}"));
    act(() => render(view, page));
    expect(page.querySelector(".card, .detail")!.textContent).not.toContain("Last used");
    await showReported({ ...stopped, last_access_at: "2026-01-02T00:00:00Z", version: 2 });
    expect(page.querySelector(".card, .detail")!.textContent).toContain("Last used");
  });
});

describe("the list of workspaces", () => {
  it("keeps its order and filter after a reload", async () => {
    sessionStorage.setItem("codehub.list", JSON.stringify({ query: "", phase: "RUNNING", sort: "name" }));
    vi.resetModules();
    const live = await import("../src/state/live");
    const reloaded = await import("../src/pages/WorkspacesPage");
    live.workspaces.value = new Map([[stopped.id, stopped]]);
    act(() => render(<reloaded.WorkspacesPage />, page));
    expect([...page.querySelectorAll("select")].map((field) => field.value)).toEqual(["RUNNING", "name"]);
    expect(page.querySelector(".card")).toBeNull();
  });

  it("shows times in Korean as facts, not as requests", async () => {
    setLanguage("ko");
    const just = new Date().toISOString();
    await showReported({ ...stopped, last_access_at: just });
    act(() => render(<WorkspacesPage />, page));
    expect(page.textContent).toContain("방금 사용함");
    await showReported({ ...stopped, deleted_at: just });
    expect(page.textContent).toContain("방금 삭제됨");
  });
});
