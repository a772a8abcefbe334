import { computed, signal } from "@preact/signals";

import { ApiError, api, setUnauthorizedListener } from "../api";
import { safeNext } from "../next";
import type { Session } from "../types";
import { closeDialog } from "./dialogs";
import { clearDrafts } from "./drafts";
import { address, navigate, route } from "./router";

/** The session: undefined while unknown, null when signed out. */
export const session = signal<Session | null | undefined>(undefined);

/** Whether a session ended while in use, so that the sign-in page can explain why it appeared. */
export const sessionExpired = signal(false);

/** The error of loading the session, if it was another than 401. */
export const sessionProblem = signal<ApiError | null>(null);

export const isAdmin = computed(() => session.value?.user.role === "admin");
export const trashRetentionSeconds = computed(() => session.value?.trash_retention_seconds ?? 0);

export async function loadSession(): Promise<void> {
  sessionProblem.value = null;
  try {
    session.value = await api.session();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status !== 401) sessionProblem.value = error;
  }
}

export async function signIn(username: string, password: string): Promise<void> {
  await api.login(username, password);
  session.value = await api.session();
  sessionExpired.value = false;
  navigate(nextAfterSignIn(), { replace: true });
}

export async function signOut(): Promise<void> {
  await api.logout();
  clearDrafts();
  session.value = null;
  sessionExpired.value = false;
  navigate("/login");
}

export const nextAfterSignIn = (): string => safeNext(new URLSearchParams(address.value.search).get("next"));

function goToSignIn(): void {
  if (session.value) sessionExpired.value = true;
  session.value = null;
  closeDialog();
  if (route.value.page === "login") return;
  const { pathname, search } = address.value;
  const back = pathname + search;
  navigate(back === "/" ? "/login" : `/login?next=${encodeURIComponent(back)}`, { replace: true });
}

setUnauthorizedListener(goToSignIn);
