import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, describe, expect, it, vi } from "vitest";

import { LogsPanel } from "../src/components/LogsPanel";
import { harmless, KEPT_CHARACTERS, newest } from "../src/log_text";
import { workspace } from "./samples";

const page = document.createElement("div");
const find = (id: string) => page.querySelector<HTMLElement>(`[data-testid=${id}]`);

/** Answers each call with the pieces, and keeps the response open if `follow` is asked for. */
function serve(...pieces: string[]): string[] {
  const calls: string[] = [];
  vi.stubGlobal(
    "fetch",
    vi.fn((url: string) => {
      calls.push(url);
      const body = new ReadableStream<Uint8Array>({
        start(controller) {
          for (const piece of pieces) controller.enqueue(new TextEncoder().encode(piece));
          if (!url.includes("follow=true")) controller.close();
        },
      });
      return Promise.resolve(new Response(body));
    }),
  );
  return calls;
}

async function show(): Promise<void> {
  await act(async () => render(<LogsPanel workspace={workspace({ phase: "RUNNING" })} />, page));
  await act(async () => find("show-logs")!.click());
}

afterEach(() => {
  act(() => render(null, page));
  vi.unstubAllGlobals();
});

describe("output", () => {
  it("becomes text that does nothing", () => {
    expect(harmless("a\x1b[31mred\x07\x9b\x7f\tb\r\nc\rd\u202e")).toBe("a␛[31mred␇\ufffd␡\tb\nc␍d\ufffd");
  });

  it("is kept from the beginning of a line", () => {
    const text = newest(`${"x".repeat(KEPT_CHARACTERS)}\nlast\n`);
    expect(text).toBe("last\n");
  });
});

describe("the logs of a workspace", () => {
  it("are read once they are asked for, and followed", async () => {
    const calls = serve("one\r", "\n<b>two</b>\x1b[0m\n");
    await act(async () => render(<LogsPanel workspace={workspace({ phase: "RUNNING" })} />, page));
    expect(calls).toEqual([]);
    await act(async () => find("show-logs")!.click());
    await vi.waitFor(() => expect(find("logs")!.textContent).toBe("one\n<b>two</b>␛[0m\n"));
    expect(find("logs")!.children.length).toBe(0);
    expect(calls).toEqual([`/api/v1/workspaces/${workspace().id}/logs?lines=1000&follow=true`]);
  });

  it("end where they are if they are not followed", async () => {
    const calls = serve("one\n");
    await show();
    const follow = find("follow-logs") as HTMLInputElement;
    await act(async () => {
      follow.checked = false;
      follow.dispatchEvent(new Event("change"));
    });
    await vi.waitFor(() => expect(calls.length).toBe(2));
    expect(calls[1]).not.toContain("follow");
    await vi.waitFor(() => expect(find("logs")!.textContent).toBe("one\n"));
  });
});
