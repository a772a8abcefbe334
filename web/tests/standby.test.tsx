import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { Leases } from "../src/components/Leases";
import { standbySentence } from "../src/components/StandbyStatus";
import { WorkspaceStatus } from "../src/components/WorkspaceStatus";
import { setLanguage } from "../src/i18n";
import type { Standby } from "../src/types";
import { workspace } from "./samples";

const page = document.createElement("div");
const NOW = Date.parse("2026-01-01T12:00:00Z");
const facts: Standby = {
  at: null,
  reason: "",
  code: "command",
  ttl_seconds: 600,
  since: "2026-01-01T11:02:00Z",
  until: null,
  not_before: null,
  commands: 1,
  lease_reason: null,
  cpu_percent: null,
  cpu_above_percent: null,
};

beforeEach(() => setLanguage("en"));
afterEach(() => {
  act(() => render(null, page));
  vi.unstubAllGlobals();
});

describe("why a workspace is still running", () => {
  it("names its commands, and when it pauses after them", () => {
    expect(standbySentence(facts, NOW)).toMatch(
      /^Running a command since .*2026.*; pauses 10 minutes after it ends\.$/,
    );
    const held = { ...facts, commands: 2, not_before: "2026-01-01T16:10:00Z", at: "2026-01-03T16:10:00Z" };
    expect(standbySentence(held, NOW)).toMatch(/^Running 2 commands .* Not before .* At the latest at .*/);
    setLanguage("ko");
    expect(standbySentence(facts, NOW)).toMatch(
      /부터 명령 실행 중\. 명령이 끝나고 10분 후 일시 중지됩니다\.$/,
    );
  });

  it("names its lease with the reason", () => {
    const held: Standby = {
      ...facts,
      code: "lease",
      until: "2026-01-01T16:00:00Z",
      lease_reason: "nightly build",
      commands: 0,
    };
    expect(standbySentence(held, NOW)).toMatch(/^Kept awake by a lease until .*: nightly build\.$/);
    const busy = { ...held, commands: 2, at: "2026-01-01T16:10:00Z" };
    expect(standbySentence(busy, NOW)).toMatch(/ 2 commands run as well\. Pauses at .* if unused\.$/);
    setLanguage("ko");
    expect(standbySentence(held, NOW)).toMatch(/까지 실행 유지가 예약됨: nightly build\.$/);
  });

  it("names its CPU use, alone and beside commands", () => {
    const busy = { ...facts, cpu_percent: 83, cpu_above_percent: 50 };
    const held: Standby = { ...busy, code: "cpu", commands: 0, at: "2026-01-03T16:10:00Z" };
    expect(standbySentence(held, NOW)).toMatch(
      /^Kept awake by its CPU use since .*: 83% of a core .* no longer above 50%\. At the latest at .*\.$/,
    );
    expect(standbySentence({ ...held, commands: 1 }, NOW)).toMatch(/ A command runs as well\.$/);
    expect(standbySentence(busy, NOW)).toMatch(/^Running a command .* Its CPU use keeps it awake as well\.$/);
    setLanguage("ko");
    expect(standbySentence(held, NOW)).toMatch(/10분 평균 코어 1개의 83%\)\. 50% 이하로 내려가고 10분 후/);
  });

  it("counts down if it is unused, and says if it never pauses", () => {
    const idle: Standby = { ...facts, code: "idle", at: "2026-01-01T12:08:00Z" };
    expect(standbySentence(idle, NOW)).toBe("Pauses in 8 min if unused");
    expect(standbySentence({ ...facts, code: "never" }, NOW)).toBe("Never pauses when unused");
  });

  it("is shown in lists and on the page", () => {
    act(() => render(<WorkspaceStatus workspace={workspace({ standby: facts })} />, page));
    expect(page.querySelector("[data-testid=standby]")?.textContent).toContain("Running a command since");
  });
});

describe("the leases of a workspace", () => {
  it("are listed with their reason, and deleted", async () => {
    const lease = {
      id: "01j0000000000000000000000c",
      reason: "nightly build",
      actor: "mina (token ci)",
      created_at: "2026-01-01T11:00:00Z",
      expires_at: "2026-01-01T16:00:00Z",
    };
    let items = [lease];
    const calls: string[] = [];
    vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
      calls.push(`${init.method} ${url}`);
      if (init.method === "DELETE") {
        items = [];
        return new Response(null, { status: 204 });
      }
      return new Response(JSON.stringify({ items }), { status: 200 });
    });
    await act(async () => render(<Leases workspace={workspace()} />, page));
    await vi.waitFor(() => expect(page.textContent).toContain("nightly build"));
    expect(page.textContent).toContain("mina (token ci)");
    await act(async () => page.querySelector<HTMLElement>("[data-testid=delete-lease]")!.click());
    await vi.waitFor(() => expect(page.textContent).toBe(""));
    expect(calls).toContain(`DELETE /api/v1/workspaces/${workspace().id}/leases/${lease.id}`);
  });
});
