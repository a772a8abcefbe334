import { describe, expect, it } from "vitest";

import { leavesDashboard, safeNext } from "../src/next";

const origin = "http://localhost:8080";

describe("the path after the sign-in", () => {
  it.each(["/", "/trash", "/w/01j0/folder?x=1#y", "/workspaces/01j0"])("accepts %s", (next) => {
    expect(safeNext(next, origin)).toBe(next);
  });

  it.each([
    null,
    "",
    "trash",
    "//evil.example",
    "/\\evil.example",
    "/\t/evil.example",
    "/\n//evil.example",
    "/.//evil.example",
    "http://evil.example/",
    "javascript:alert(1)",
    "/login?next=/login",
  ])("rejects %j", (next) => {
    expect(safeNext(next, origin)).toBe("/");
  });

  it("leaves the dashboard for a workspace", () => {
    expect(leavesDashboard("/w/01j0/")).toBe(true);
    expect(leavesDashboard("/workspaces/01j0")).toBe(false);
  });
});
