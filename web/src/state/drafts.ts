/**
 * Drafts: text being typed, kept apart from the server's value so that an event does not replace it. Drafts
 * outlive their page, so that visiting another page or signing in again loses nothing.
 */

import { signal } from "@preact/signals";

interface Draft {
  text: string;
  /** The server's value when typing began. */
  base: string;
}

export const drafts = signal<ReadonlyMap<string, Draft>>(new Map());

export interface DraftField {
  value: string;
  dirty: boolean;
  /** Whether the server's value has changed since typing began. */
  conflict: boolean;
  set(text: string): void;
  discard(): void;
  /** Marks the text as saved. Text typed since then stays a draft. */
  saved(text: string): void;
}

function put(key: string, draft: Draft | null): void {
  const next = new Map(drafts.peek());
  if (draft) next.set(key, draft);
  else next.delete(key);
  drafts.value = next;
}

export function draftField(key: string, serverValue: string): DraftField {
  const draft = drafts.value.get(key);
  return {
    value: draft?.text ?? serverValue,
    dirty: draft !== undefined && draft.text !== serverValue,
    conflict: draft !== undefined && draft.base !== serverValue && draft.text !== serverValue,
    set: (text) => put(key, text === serverValue ? null : { text, base: draft?.base ?? serverValue }),
    discard: () => put(key, null),
    saved: (text) => {
      const current = drafts.peek().get(key);
      if (current) put(key, current.text === text ? null : { text: current.text, base: text });
    },
  };
}

export function clearDrafts(): void {
  drafts.value = new Map();
}

export function warnBeforeLosingDrafts(): void {
  window.addEventListener("beforeunload", (event) => {
    if (drafts.peek().size > 0) event.preventDefault();
  });
}
