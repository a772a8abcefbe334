import { signal } from "@preact/signals";

import type { User, Workspace } from "../types";

export type Dialog =
  | { kind: "create" }
  | { kind: "help" }
  | { kind: "delete"; workspace: Workspace; onDone: () => void }
  | { kind: "recover"; workspace: Workspace; onDone: () => void }
  | { kind: "set-password"; user: User }
  | { kind: "delete-user"; user: User; onDone: () => void };

/** Dialogs belong to the page as a whole: an event that redraws a list must not close one. */
export const dialog = signal<Dialog | null>(null);

export const showDialog = (next: Dialog): void => {
  dialog.value = next;
};

export const closeDialog = (): void => {
  dialog.value = null;
};
