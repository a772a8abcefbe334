import { signal } from "@preact/signals";

import type { Archive, Token, User, Workspace } from "../types";

export type Dialog =
  | { kind: "create" }
  | { kind: "help" }
  | { kind: "delete"; workspace: Workspace; onDone: () => void }
  | { kind: "recover"; workspace: Workspace; onDone: () => void }
  | { kind: "restore"; workspace: Workspace; archive: Archive }
  | { kind: "set-password"; user: User }
  | { kind: "revoke-token"; accountId: string | null; token: Token; onDone: () => void }
  | { kind: "delete-user"; user: User; onDone: () => void };

/**
 * The open dialog. It belongs to the whole page, so that an event that redraws a list does not
 * close it.
 */
export const dialog = signal<Dialog | null>(null);

export const showDialog = (next: Dialog): void => {
  dialog.value = next;
};

export const closeDialog = (): void => {
  dialog.value = null;
};
