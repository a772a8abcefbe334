import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { AUDIT_ACTIONS, auditActor, auditSentence } from "../src/audit";
import { SetPasswordDialog } from "../src/dialogs/SetPasswordDialog";
import { setLanguage } from "../src/i18n";
import { AdminAuditPage } from "../src/pages/AdminAuditPage";
import type { AuditEntry, AuditPage } from "../src/types";

function entry(changes: Partial<AuditEntry> = {}): AuditEntry {
  return {
    id: 1,
    at: "2026-01-01T12:00:00Z",
    actor: { kind: "admin", id: "01r", name: "root" },
    address: "192.0.2.1",
    action: "workspace.deleted",
    target: { kind: "workspace", id: "01w", name: "notes" },
    outcome: "success",
    details: { owner: "mina" },
    ...changes,
  };
}

const user = { kind: "user", id: "01u", name: "mina" };
const SENTENCES: Array<[Partial<AuditEntry>, string, string]> = [
  [{}, "Deleted the workspace notes of mina", "mina 사용자의 notes 워크스페이스를 삭제했습니다"],
  [{ details: { owner: "root" } }, "Deleted the workspace notes", "notes 워크스페이스를 삭제했습니다"],
  [
    { action: "workspace.recovered", details: { owner: "root", source: "empty" } },
    "Recovered the workspace notes with an empty home",
    "notes 워크스페이스를 빈 홈으로 복구했습니다",
  ],
  [
    { action: "session.failed", target: user },
    "Failed to sign in as mina",
    "mina 계정으로 로그인하지 못했습니다",
  ],
  [
    { action: "session.failed", target: null },
    "Failed to sign in with an unknown user name",
    "없는 사용자 이름으로 로그인하려 했습니다",
  ],
  [
    { action: "session.locked", target: user, details: { failures: 6, seconds: 60 } },
    "Entered a wrong password 6 times for mina; locked for 1 min",
    "mina 계정의 비밀번호를 6번 틀려 1분 동안 잠겼습니다",
  ],
  [
    { action: "user.role_changed", target: user, details: { before: "user", after: "admin" } },
    "Changed the role of mina from user to admin",
    "mina 사용자의 역할을 바꿨습니다 (사용자 → 관리자)",
  ],
  [
    { action: "security.weakened", details: { settings: ["plain_http", "a_new_one"] } },
    "Started with weaker security: no https, a_new_one",
    "보안이 약한 설정으로 시작했습니다: https 없음, a_new_one",
  ],
  [{ action: "rocket.launched" }, "rocket.launched: notes", "rocket.launched: notes"],
];

let container: HTMLElement;

beforeEach(() => {
  container = document.createElement("div");
  document.body.append(container);
});

afterEach(() => {
  render(null, container);
  container.remove();
  setLanguage("en");
  vi.unstubAllGlobals();
});

describe("an entry of the audit log", () => {
  it.each(SENTENCES)("reads as a sentence in both languages: %j", (changes, english, korean) => {
    setLanguage("en");
    expect(auditSentence(entry(changes))).toBe(english);
    setLanguage("ko");
    expect(auditSentence(entry(changes))).toBe(korean);
  });

  it("has a sentence without gaps for every action, even if a detail is missing", () => {
    for (const language of ["en", "ko"] as const) {
      setLanguage(language);
      for (const action of AUDIT_ACTIONS) {
        expect(auditSentence(entry({ action, target: null, details: {} }))).not.toMatch(
          /undefined|null|NaN|^$/,
        );
      }
    }
  });

  it("names the actor", () => {
    const by = (kind: AuditEntry["actor"]["kind"], name: string) =>
      auditActor(entry({ actor: { kind, id: null, name } }));
    expect(by("user", "mina")).toBe("mina");
    expect(by("anonymous", "")).toBe("Not signed in");
    expect(by("cli", "cli")).toBe("Command line");
    expect(by("system", "gateway")).toBe("CodeHub (gateway)");
  });
});

/** Mocks the API: each call gets the next of these responses. Returns the calls. */
function answer(...answers: Array<{ status?: number; body: unknown }>): {
  calls: Array<[string, RequestInit]>;
} {
  const calls: Array<[string, RequestInit]> = [];
  vi.stubGlobal(
    "fetch",
    vi.fn(async (url: string, init: RequestInit) => {
      calls.push([url, init]);
      const { status = 200, body } = answers.shift()!;
      return new Response(JSON.stringify(body), { status });
    }),
  );
  return { calls };
}

const page = (ids: number[], next: number | null): { body: AuditPage } => ({
  body: { items: ids.map((id) => entry({ id })), next },
});
const settled = () => act(async () => void (await new Promise((resolve) => setTimeout(resolve))));
const find = <T extends HTMLElement>(testId: string) =>
  container.querySelector<T>(`[data-testid="${testId}"]`);
const rows = () => container.querySelectorAll('[data-testid="audit-row"]').length;

async function type(field: HTMLInputElement, value: string): Promise<void> {
  await act(() => {
    field.value = value;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

describe("the page of the audit log", () => {
  it("appends older entries after the last one, until there are none", async () => {
    const { calls } = answer(page([9, 8], 8), page([7], null));
    await act(() => render(<AdminAuditPage />, container));
    await settled();
    expect(rows()).toBe(2);
    await act(() => find("audit-more")!.click());
    await settled();
    expect(calls.map(([url]) => url)).toEqual([
      "/api/v1/admin/audit?limit=50",
      "/api/v1/admin/audit?limit=50&before=8",
    ]);
    expect(rows()).toBe(3);
    expect(find("audit-more")).toBeNull();
    expect(container.querySelector('[role="status"]')!.textContent).toBe("3 shown");
  });

  it("starts at the newest entry when the filter changes", async () => {
    const { calls } = answer(page([9, 8], 8), page([7], null), page([], null));
    await act(() => render(<AdminAuditPage />, container));
    await settled();
    await act(() => find("audit-more")!.click());
    await settled();
    await type(find<HTMLInputElement>("audit-actor")!, " mina ");
    await settled();
    expect(calls.at(-1)![0]).toBe("/api/v1/admin/audit?actor=mina&limit=50");
    expect(rows()).toBe(0);
    expect(container.textContent).toContain("No entry matches.");
  });

  it("shows an error beside the loaded entries", async () => {
    answer(page([9], 9), {
      status: 503,
      body: { error: { code: "UNAVAILABLE", message: "Try again shortly." } },
    });
    await act(() => render(<AdminAuditPage />, container));
    await settled();
    await act(() => find("audit-more")!.click());
    await settled();
    expect(container.querySelector('[role="alert"]')!.textContent).toContain("Try again shortly.");
    expect(rows()).toBe(1);
    expect(find("audit-more")).not.toBeNull();
  });
});

describe("the dialog that sets a password", () => {
  it("sends the admin's own password and shows why it was rejected", async () => {
    vi.stubGlobal("requestAnimationFrame", () => 0);
    const { calls } = answer({
      status: 403,
      body: { error: { code: "FORBIDDEN", message: "It is not right." } },
    });
    const mina = { id: "01u", username: "mina", role: "user" as const };
    await act(() => render(<SetPasswordDialog user={mina} />, container));
    await type(find<HTMLInputElement>("set-password")!, "a new password");
    await type(find<HTMLInputElement>("your-password")!, "my own password");
    await act(
      () => void container.querySelector("form")!.dispatchEvent(new Event("submit", { cancelable: true })),
    );
    await settled();
    const [url, init] = calls[0]!;
    expect([init.method, url]).toEqual(["PATCH", "/api/v1/users/01u"]);
    expect(JSON.parse(String(init.body))).toEqual({
      password: "a new password",
      your_password: "my own password",
    });
    expect(container.querySelector('[role="alert"]')!.textContent).toContain("It is not right.");
  });
});
