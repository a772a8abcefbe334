import { render } from "preact";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { setLanguage } from "../src/i18n";
import { AdminUsersPage } from "../src/pages/AdminUsersPage";
import { session } from "../src/state/session";
import { session as someone } from "./samples";

const page = document.createElement("div");
const TOTAL = 230;

const person = (number: number) => ({
  id: `${number}`.padStart(26, "0"),
  username: `user-${number}`,
  role: "user",
  created_at: "2026-01-01T00:00:00Z",
  service: false,
});

beforeEach(() => {
  setLanguage("en");
  session.value = { ...someone, user: { ...someone.user, role: "admin" } };
  vi.stubGlobal("fetch", async (url: string) => {
    const { searchParams } = new URL(url, "http://localhost");
    const offset = Number(searchParams.get("offset") ?? 0);
    const count = Math.min(Number(searchParams.get("limit")), TOTAL - offset);
    const items = Array.from({ length: count }, (_, index) => person(offset + index));
    return new Response(JSON.stringify({ items, total: TOTAL }), { status: 200 });
  });
});

afterEach(() => {
  render(null, page);
  vi.unstubAllGlobals();
});

it("reaches every user, however many there are", async () => {
  render(<AdminUsersPage />, page);
  const seen = new Set<string>();
  for (;;) {
    const before = seen.size;
    await vi.waitFor(() => {
      for (const row of page.querySelectorAll("[data-username]"))
        seen.add(row.getAttribute("data-username")!);
      expect(seen.size).toBeGreaterThan(before);
    });
    const next = [...page.querySelectorAll("button")].find((button) => button.textContent?.includes("Next"));
    if (!next || next.disabled || next.getAttribute("aria-disabled") === "true") break;
    next.click();
  }
  expect(seen.size).toBe(TOTAL);
});
