import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { SettingsForm } from "../src/components/SettingsForm";
import { Stats, StatsFacts } from "../src/components/Stats";
import { setLanguage } from "../src/i18n";
import { session as signedIn } from "../src/state/session";
import type { Stats as StatsData } from "../src/types";
import { detailed, session, workspace } from "./samples";

const page = document.createElement("div");
const MEASURED: StatsData = {
  measured_at: "2026-01-01T12:00:00Z",
  interval_seconds: 60,
  cpu: { percent: 150.4, percent_of_cap: 75.2, average_percent: 60, cores: 2, reason: null },
  memory: { used_bytes: 300_000_000, limit_bytes: 2_000_000_000, reason: null },
  processes: { count: 17, limit: 1024, reason: null },
  home: {
    bytes: 5_000_000,
    free_bytes: 70_000_000_000,
    complete: true,
    measured_at: "2026-01-01T11:55:00Z",
    reason: null,
  },
  samples: [],
};
const WHY = "The workspace has just started. It is measured once a minute.";
const UNKNOWN: StatsData = {
  measured_at: null,
  interval_seconds: 60,
  cpu: { percent: null, percent_of_cap: null, average_percent: null, cores: null, reason: WHY },
  memory: { used_bytes: null, limit_bytes: null, reason: WHY },
  processes: { count: null, limit: null, reason: WHY },
  home: { bytes: 5_000_000, free_bytes: null, complete: false, measured_at: null, reason: WHY },
  samples: [],
};
const values = () => [...page.querySelectorAll("dd")].map((item) => item.textContent);
const reasons = () => [...page.querySelectorAll("[lang=en]")].map((item) => item.textContent);

beforeEach(() => setLanguage("en"));
afterEach(() => {
  act(() => render(null, page));
  vi.unstubAllGlobals();
});

describe("what a workspace uses", () => {
  it("is shown with its caps", () => {
    act(() => render(<StatsFacts stats={MEASURED} />, page));
    expect(values()).toEqual([
      "150% of a core, cap 2 cores; 60% on average over ten minutes",
      "300 MB of 2.0 GB",
      "17 of 1,024",
      "5.0 MB, 70.0 GB free",
    ]);
    expect(reasons()).toEqual([]);
    setLanguage("ko");
    act(() => render(<StatsFacts stats={MEASURED} />, page));
    expect(values()[0]).toBe("코어 1개의 150%, 한도 코어 2개; 10분 평균 60%");
  });

  it("says once why something is not known", () => {
    act(() => render(<StatsFacts stats={UNKNOWN} />, page));
    expect(values()).toEqual(["Not known", "Not known", "Not known", "at least 5.0 MB"]);
    expect(reasons()).toEqual([WHY]);
  });

  it("is loaded from the API", async () => {
    const fetched = vi.fn((_url: string) => Promise.resolve(Response.json(MEASURED)));
    vi.stubGlobal("fetch", fetched);
    await act(async () => render(<Stats workspace={workspace()} />, page));
    await vi.waitFor(() => expect(values().length).toBe(4));
    expect(fetched.mock.calls[0]![0]).toMatch(/\/workspaces\/[^/]+\/stats$/);
  });
});

describe("the CPU use that keeps a workspace awake", () => {
  it.each([
    ["80", 80],
    ["0", 0],
    ["", null],
  ])("is saved: %j", async (typed, sent) => {
    const bodies: unknown[] = [];
    vi.stubGlobal(
      "fetch",
      vi.fn((_url: string, options: RequestInit) => {
        bodies.push(JSON.parse(String(options.body)));
        return Promise.resolve(Response.json(detailed({ awake_cpu_percent: sent, version: 2 })));
      }),
    );
    signedIn.value = { ...session, ttl: { ...session.ttl, awake_cpu_percent: 70 } };
    act(() => render(<SettingsForm workspace={workspace({ awake_cpu_percent: 50 })} />, page));
    expect(page.textContent).toContain("Empty is the default: 70%.");
    const input = page.querySelector<HTMLInputElement>("[data-testid=awake-cpu]")!;
    expect(input.value).toBe("50");
    act(() => {
      input.value = typed;
      input.dispatchEvent(new Event("input", { bubbles: true }));
    });
    await act(async () => {
      page.querySelector("form")!.dispatchEvent(new Event("submit", { cancelable: true }));
    });
    await vi.waitFor(() => expect(bodies).toEqual([{ awake_cpu_percent: sent }]));
  });
});
