import { render } from "preact";
import { act } from "preact/test-utils";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

import { DeleteDialog } from "../src/dialogs/DeleteDialog";
import { workspace } from "./samples";

const NAME = "my work & more";
const page = document.createElement("div");
const find = <T extends HTMLElement>(id: string) => page.querySelector<T>(`[data-testid=${id}]`);
const submit = () =>
  act(() => void page.querySelector("form")!.dispatchEvent(new Event("submit", { bubbles: true })));
let asked: string[];

function show(deleted_at: string | null): void {
  act(() =>
    render(<DeleteDialog workspace={workspace({ name: NAME, deleted_at })} onDone={() => {}} />, page),
  );
}

function type(text: string): void {
  const field = find<HTMLInputElement>("typed-name")!;
  act(() => {
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  });
}

function chooseForGood(): void {
  const box = find<HTMLInputElement>("delete-for-good")!;
  act(() => {
    box.checked = true;
    box.dispatchEvent(new Event("change", { bubbles: true }));
  });
}

beforeEach(() => {
  asked = [];
  HTMLDialogElement.prototype.showModal = () => {};
  HTMLDialogElement.prototype.close = () => {};
  vi.stubGlobal(
    "fetch",
    vi.fn((url: string) => {
      asked.push(url);
      return Promise.resolve(new Response(null, { status: 204 }));
    }),
  );
});

afterEach(() => {
  act(() => render(null, page));
  vi.unstubAllGlobals();
});

describe("the delete dialog", () => {
  it("moves a workspace to the trash by default", async () => {
    show(null);
    expect(find("typed-name")).toBeNull();
    await submit();
    expect(asked).toEqual([`/api/v1/workspaces/${workspace().id}`]);
  });

  it.each([null, "2026-01-01T00:00:00Z"])(
    "deletes for good once the name was typed (deleted_at %s)",
    async (deleted) => {
      show(deleted);
      if (deleted === null) chooseForGood();
      await submit();
      type(NAME.toUpperCase());
      await submit();
      expect(asked).toEqual([]);
      expect(page.textContent).toContain(`The home of “${NAME}” and all its archives are deleted at once.`);
      type(NAME);
      await submit();
      expect(asked).toEqual([
        `/api/v1/workspaces/${workspace().id}?without_archive=true&confirm=my%20work%20%26%20more`,
      ]);
    },
  );
});
