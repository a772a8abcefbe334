import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, expect, it, vi } from "vitest";

import { TokenPanel } from "../src/components/TokenPanel";
import { DialogHost } from "../src/dialogs/DialogHost";
import { setLanguage } from "../src/i18n";
import { workspaces } from "../src/state/live";
import { session } from "../src/state/session";
import { session as someone, workspace } from "./samples";

const page = document.createElement("div");
const SECRET = `chub_${"a".repeat(40)}`;
const CI = {
  id: "01j0000000000000000000000t",
  name: "ci",
  prefix: "chub_aaa",
  scopes: ["read"],
  workspaces: null,
  created_at: "2026-01-01T00:00:00Z",
  expires_at: null,
  last_used_at: null,
};

interface Call {
  method: string;
  path: string;
  body: Record<string, unknown> | null;
}

let calls: Call[];
let tokens: (typeof CI)[];
let isPasswordRecent: boolean;

function answer({ method, path, body }: Call): [number, unknown] {
  if (path === "/session/confirm") {
    isPasswordRecent = true;
    return [204, null];
  }
  if (method === "GET") return [200, { items: tokens }];
  if (method === "DELETE") {
    tokens = [];
    return [204, null];
  }
  if (!isPasswordRecent) return [403, { error: { code: "PASSWORD_REQUIRED", message: "Enter it." } }];
  tokens = [{ ...CI, name: String(body!.name) }];
  return [201, { ...tokens[0], token: SECRET }];
}

beforeEach(() => {
  setLanguage("en");
  calls = [];
  tokens = [];
  isPasswordRecent = true;
  session.value = someone;
  document.body.append(page);
  vi.stubGlobal("fetch", async (url: string, init: RequestInit) => {
    const body = init.body ? JSON.parse(String(init.body)) : null;
    const call = { method: init.method!, path: url.replace("/api/v1", ""), body };
    calls.push(call);
    const [status, content] = answer(call);
    return new Response(content === null ? null : JSON.stringify(content), { status });
  });
});

afterEach(() => {
  render(null, page);
  page.remove();
  workspaces.value = new Map();
  vi.unstubAllGlobals();
});

const find = <T extends HTMLElement>(testId: string) =>
  page.querySelector<T>(`[data-testid="${testId}"]`) ?? undefined;

const click = (element: HTMLElement) => act(() => element.click());

const type = (testId: string, value: string) =>
  act(() => {
    const input = find<HTMLInputElement>(testId)!;
    input.value = value;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  });

const made = () => calls.filter(({ method, path }) => method === "POST" && path === "/tokens");

it("shows a new token once, and it is in the list without its secret", async () => {
  render(<TokenPanel accountId={null} />, page);
  await type("token-name", "deploy");
  await click(find("scope-use")!);
  await click(find("token-submit")!);
  await vi.waitFor(() => expect(find<HTMLInputElement>("token-secret")?.value).toBe(SECRET));
  await vi.waitFor(() => expect(find("token-row")?.textContent).toContain("deploy"));
  expect(find("token-row")!.textContent).not.toContain(SECRET);
  expect(made()[0]!.body).toEqual({
    name: "deploy",
    scopes: ["read", "use"],
    workspaces: null,
    expires_in_days: 90,
  });
});

it("asks for the password when the API needs it, and then makes the token", async () => {
  isPasswordRecent = false;
  render(<TokenPanel accountId={null} />, page);
  expect(find("token-password")).toBeUndefined();
  await type("token-name", "deploy");
  await click(find("token-submit")!);
  await vi.waitFor(() => expect(find("token-password")).toBeDefined());
  await type("token-password", "a good password");
  await vi.waitFor(() => expect(find("token-submit")!.getAttribute("aria-disabled")).not.toBe("true"));
  await click(find("token-submit")!);
  await vi.waitFor(() => expect(find("token-secret")).toBeDefined());
  expect(calls.find(({ path }) => path === "/session/confirm")!.body).toEqual({
    password: "a good password",
  });
});

it("binds a token to the chosen workspaces", async () => {
  const one = workspace({ name: "one" });
  workspaces.value = new Map([[one.id, one]]);
  render(<TokenPanel accountId={null} />, page);
  await type("token-name", "deploy");
  await click(find("token-all-workspaces")!);
  await vi.waitFor(() => expect(page.textContent).toContain("one"));
  const choice = [...page.querySelectorAll("label")].find((label) => label.textContent === "one")!;
  await click(choice.querySelector("input")!);
  await click(find("token-submit")!);
  await vi.waitFor(() => expect(made()[0]?.body?.workspaces).toEqual([one.id]));
});

it("offers the scope of admins to admins only, and never for a service account", () => {
  render(<TokenPanel accountId={null} />, page);
  expect(find("scope-admin")).toBeUndefined();
  session.value = { ...someone, user: { ...someone.user, role: "admin" } };
  render(null, page);
  render(<TokenPanel accountId={null} />, page);
  expect(find("scope-admin")).toBeDefined();
  render(null, page);
  render(<TokenPanel accountId="01j0000000000000000000000r" />, page);
  expect(find("scope-admin")).toBeUndefined();
});

it("revokes a token after a confirmation", async () => {
  HTMLDialogElement.prototype.showModal ??= () => {};
  HTMLDialogElement.prototype.close ??= () => {};
  tokens = [CI];
  render(
    <>
      <TokenPanel accountId={null} />
      <DialogHost />
    </>,
    page,
  );
  await vi.waitFor(() => expect(find("token-row")).toBeDefined());
  await click(find("token-row")!.querySelector("button")!);
  await vi.waitFor(() => expect(find("confirm-revoke-token")).toBeDefined());
  expect(calls.some(({ method }) => method === "DELETE")).toBe(false);
  await click(find("confirm-revoke-token")!);
  await vi.waitFor(() => expect(find("token-row")).toBeUndefined());
  expect(calls.find(({ method }) => method === "DELETE")!.path).toBe(`/tokens/${CI.id}`);
});
