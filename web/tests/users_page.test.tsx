import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { setLanguage } from "../src/i18n";
import { AdminUsersPage } from "../src/pages/AdminUsersPage";
import { session } from "../src/state/session";
import { session as someone } from "./samples";

const page = document.createElement("div");
const TOTAL = 230;
const PASSWORD = "my own password";

interface Call {
  method: string;
  path: string;
  body: Record<string, unknown> | null;
}

let calls: Call[];
let isPasswordRecent: boolean;

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
  calls = [];
  isPasswordRecent = false;
  vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
    const { pathname, searchParams } = new URL(url, "http://localhost");
    const method = init.method ?? "GET";
    const body = init.body ? JSON.parse(String(init.body)) : null;
    if (method !== "GET") return change({ method, path: pathname.replace("/api/v1", ""), body });
    const offset = Number(searchParams.get("offset") ?? 0);
    const count = Math.min(Number(searchParams.get("limit")), TOTAL - offset);
    const items = Array.from({ length: count }, (_, index) => person(offset + index));
    return new Response(JSON.stringify({ items, total: TOTAL }), { status: 200 });
  });
});

function change(call: Call): Response {
  calls.push(call);
  if (call.path === "/session/confirm") {
    isPasswordRecent = true;
    return new Response(null, { status: 204 });
  }
  if (isPasswordRecent) return new Response(JSON.stringify(person(1)), { status: 200 });
  const error = { code: "PASSWORD_REQUIRED", message: "Enter it." };
  return new Response(JSON.stringify({ error }), { status: 403 });
}

const find = <T extends HTMLElement>(testId: string) =>
  page.querySelector<T>(`[data-testid="${testId}"]`) ?? undefined;

const type = (testId: string, value: string) =>
  act(() => {
    const input = find<HTMLInputElement>(testId)!;
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  });

/** Clicks a button once its form is no longer busy. */
async function press(testId: string): Promise<void> {
  await vi.waitFor(() => expect(find(testId)!.getAttribute("aria-disabled")).not.toBe("true"));
  await act(() => find(testId)!.click());
}

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

it("asks for the password when creating a user needs it", async () => {
  document.body.append(page);
  render(<AdminUsersPage />, page);
  await type("user-name", "bob");
  await type("user-password", "a good password");
  expect(find("user-confirmation")).toBeUndefined();
  await press("user-submit");
  await vi.waitFor(() => expect(find("user-confirmation")).toBeDefined());
  await type("user-confirmation", PASSWORD);
  await press("user-submit");
  await vi.waitFor(() => expect(find<HTMLInputElement>("user-name")!.value).toBe(""));
  expect(calls.map(({ path }) => path)).toEqual(["/users", "/session/confirm", "/users"]);
  expect(calls[1]!.body).toEqual({ password: PASSWORD });
  expect(find("user-confirmation")).toBeUndefined();
  page.remove();
});

it("asks for the password when making an admin needs it", async () => {
  document.body.append(page);
  render(<AdminUsersPage />, page);
  await vi.waitFor(() => expect(find("user-row")).toBeDefined());
  const role = find("user-row")!.querySelector("select")!;
  await act(() => {
    role.value = "admin";
    role.dispatchEvent(new Event("change", { bubbles: true }));
  });
  await vi.waitFor(() => expect(find("role-confirmation")).toBeDefined());
  await type("role-confirmation", PASSWORD);
  await press("role-submit");
  await vi.waitFor(() => expect(find("role-confirmation")).toBeUndefined());
  const path = `/users/${person(0).id}`;
  expect(calls.map(({ path }) => path)).toEqual([path, "/session/confirm", path]);
  expect(calls[2]!.body).toEqual({ role: "admin" });
  page.remove();
});
