import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { MemoPanel } from "../src/components/MemoPanel";
import { forgetDetail } from "../src/state/detail";
import { clearDrafts } from "../src/state/drafts";
import type { DetailedWorkspace } from "../src/types";
import { detailed, workspace } from "./samples";

const page = document.createElement("div");
const field = () => page.querySelector<HTMLTextAreaElement>("[data-testid=memo]");
const show = (version: number) => act(() => render(<MemoPanel workspace={workspace({ version })} />, page));

let answer: (detail: DetailedWorkspace) => Promise<void>;

beforeEach(() => {
  forgetDetail();
  clearDrafts();
  vi.stubGlobal(
    "fetch",
    vi.fn(
      () =>
        new Promise<Response>((resolve) => {
          answer = (detail) =>
            act(async () => resolve(new Response(JSON.stringify(detail), { status: 200 })));
        }),
    ),
  );
});

afterEach(() => {
  act(() => render(null, page));
  vi.unstubAllGlobals();
});

describe("the memo of an open page", () => {
  it("accepts typing only after it is loaded, and keeps it when an event brings a newer workspace", async () => {
    await show(1);
    expect(field()).toBeNull();
    await answer(detailed({ memo: "old", version: 1 }));
    await vi.waitFor(() => expect(field()?.value).toBe("old"));
    act(() => {
      field()!.value = "typing";
      field()!.dispatchEvent(new Event("input", { bubbles: true }));
    });
    await show(2);
    expect(field()?.value).toBe("typing");
    await answer(detailed({ memo: "written elsewhere", version: 2 }));
    await vi.waitFor(() => expect(page.querySelector(".draft-conflict")).not.toBeNull());
    expect(field()?.value).toBe("typing");
  });
});
