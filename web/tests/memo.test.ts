import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { cacheDetail, cachedDetail, forgetDetail } from "../src/state/detail";
import { clearDrafts, draftField } from "../src/state/drafts";
import { saveMemo } from "../src/state/memo";
import { findIds } from "../src/state/search";
import { detailed, workspace } from "./samples";

const calls: { method: string; url: string; body: unknown }[] = [];

/** Mocks fetch: each call gets the next of these bodies. */
function answer(...bodies: unknown[]) {
  vi.stubGlobal(
    "fetch",
    vi.fn(async (url: string, init: RequestInit) => {
      calls.push({
        method: init.method ?? "GET",
        url,
        body: init.body ? JSON.parse(String(init.body)) : undefined,
      });
      return new Response(JSON.stringify(bodies.shift()), { status: 200 });
    }),
  );
}

beforeEach(() => {
  calls.length = 0;
  forgetDetail();
  clearDrafts();
});
afterEach(() => vi.unstubAllGlobals());

describe("a memo", () => {
  it("replaces the memo that was shown", async () => {
    const shown = detailed({ memo: "old", version: 1 });
    answer(detailed({ memo: "old", version: 3 }), detailed({ memo: "new", version: 4 }));
    expect(await saveMemo(shown, "new")).toBe(true);
    expect(calls.map((call) => call.method)).toEqual(["GET", "PATCH"]);
    expect(cachedDetail(shown.id)?.memo).toBe("new");
  });

  it("does not overwrite a memo that was written elsewhere and not yet loaded", async () => {
    const shown = detailed({ memo: "old", version: 1 });
    const draft = draftField("w/memo", shown.memo);
    draft.set("typed here");
    answer(detailed({ memo: "written elsewhere", version: 2 }));
    expect(await saveMemo(shown, "typed here")).toBe(false);
    expect(calls.map((call) => call.method)).toEqual(["GET"]);
    const after = draftField("w/memo", cachedDetail(shown.id)!.memo);
    expect([after.value, after.conflict]).toEqual(["typed here", true]);
  });

  it("keeps the typed text when a newer workspace is loaded", () => {
    cacheDetail(detailed({ memo: "old", version: 1 }));
    draftField("w/memo", "old").set("typing");
    cacheDetail(detailed({ memo: "old", version: 2, phase: "STANDBY" }));
    expect(draftField("w/memo", cachedDetail(workspace().id)!.memo).value).toBe("typing");
  });

  it("is not replaced by an older response", () => {
    cacheDetail(detailed({ memo: "new", version: 2 }));
    cacheDetail(detailed({ memo: "old", version: 1 }));
    expect(cachedDetail(workspace().id)?.memo).toBe("new");
  });

  it("is unknown until it is loaded", () => {
    cacheDetail(detailed({ id: "another" }));
    expect(cachedDetail(workspace().id)).toBeNull();
  });
});

describe("the search in memos", () => {
  it("fetches every page from the server", async () => {
    const page = (first: number, count: number) =>
      Array.from({ length: count }, (_, index) => workspace({ id: `w${first + index}` }));
    answer({ items: page(0, 200), total: 201 }, { items: page(200, 1), total: 201 });
    expect((await findIds("a b")).size).toBe(201);
    expect(calls.map((call) => call.url)).toEqual([
      "/api/v1/workspaces?q=a+b&limit=200&offset=0",
      "/api/v1/workspaces?q=a+b&limit=200&offset=200",
    ]);
  });
});
