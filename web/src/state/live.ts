/** The live list of the user's own workspaces, as the server last reported them. */
import { computed, signal } from "@preact/signals";

import { ApiError, api, eventsUrl } from "../api";
import { messages } from "../i18n";
import type { Workspace } from "../types";
import { isRunning } from "../workspace";
import { forgetDetail } from "./detail";
import { session } from "./session";

export type Connection = "connecting" | "live" | "lost";

export const workspaces = signal<ReadonlyMap<string, Workspace>>(new Map());
export const loaded = signal(false);
export const connection = signal<Connection>("connecting");

/** How many of the user's workspaces run, or are about to. */
export const runningCount = computed(() => [...workspaces.value.values()].filter(isRunning).length);

/** The workspace of the latest event ("*" for a snapshot). Every event sets a new object. */
export const lastEvent = signal<{ id: string } | null>(null);

/** The text that a screen reader announces next. */
export const announcement = signal("");

const GRACE_MILLISECONDS = 1_500;
const SLOW_MILLISECONDS = 10_000;
/** Heartbeats come every 30 s. After two missed ones, the connection counts as lost. */
const SILENCE_MILLISECONDS = 75_000;
const HIDDEN_MILLISECONDS = 20_000;
const RETRY_MILLISECONDS = [1_000, 2_000, 5_000, 10_000] as const;

/** Adds a workspace, unless a newer version is known: responses and events overtake each other. */
export function merge(
  current: ReadonlyMap<string, Workspace>,
  incoming: Workspace,
): ReadonlyMap<string, Workspace> {
  const known = current.get(incoming.id);
  if (known && incoming.version < known.version) return current;
  return new Map(current).set(incoming.id, incoming);
}

/** Applies the response to an action of this user, before its event arrives. */
export function applyWorkspace(workspace: Workspace): void {
  if (workspace.owner.id !== session.peek()?.user.id) return;
  if (workspace.deleted_at !== null) removeWorkspace(workspace.id);
  else update(workspace);
}

export function removeWorkspace(id: string): void {
  const known = workspaces.peek().get(id);
  if (!known) return;
  const rest = new Map(workspaces.peek());
  rest.delete(id);
  workspaces.value = rest;
  announcement.value = messages.peek().live.removed(known.name);
}

function update(workspace: Workspace): void {
  const before = workspaces.peek().get(workspace.id);
  const after = merge(workspaces.peek(), workspace);
  if (after === workspaces.peek()) return;
  workspaces.value = after;
  if (before?.phase !== workspace.phase || before.operation !== workspace.operation) announce(workspace);
}

function announce(workspace: Workspace): void {
  const text = messages.peek();
  const state =
    workspace.operation === "NONE" ? text.phases[workspace.phase] : text.operations[workspace.operation];
  announcement.value = text.live.changed(workspace.name, state);
}

let source: EventSource | null = null;
let wanted = false;
let failures = 0;
let lostTimer: number | undefined;
let silenceTimer: number | undefined;
let retryTimer: number | undefined;
let hiddenTimer: number | undefined;

function listen<T>(stream: EventSource, name: string, handle: (data: T) => void): void {
  stream.addEventListener(name, (event) => {
    if (stream !== source) return;
    noteServerActivity();
    handle(JSON.parse((event as MessageEvent<string>).data) as T);
  });
}

function noteServerActivity(): void {
  failures = 0;
  clearTimeout(lostTimer);
  connection.value = "live";
  watchSilence();
}

function watchSilence(): void {
  clearTimeout(silenceTimer);
  silenceTimer = window.setTimeout(reopen, SILENCE_MILLISECONDS);
}

function open(): void {
  const stream = new EventSource(eventsUrl);
  source = stream;
  watchSilence();
  warnOfLossAfter(SLOW_MILLISECONDS);
  let batches: Workspace[] = [];
  listen<{ items: Workspace[]; more: boolean }>(stream, "snapshot", ({ items, more }) => {
    batches = [...batches, ...items];
    if (more) return;
    workspaces.value = new Map(batches.map((item) => [item.id, item]));
    batches = [];
    loaded.value = true;
    lastEvent.value = { id: "*" };
  });
  listen<Workspace>(stream, "workspace_updated", (workspace) => {
    update(workspace);
    lastEvent.value = { id: workspace.id };
  });
  listen<{ id: string }>(stream, "workspace_deleted", ({ id }) => {
    removeWorkspace(id);
    lastEvent.value = { id };
  });
  listen<object>(stream, "heartbeat", () => {});
  stream.onerror = () => {
    if (stream !== source) return;
    batches = []; // the browser reconnects this object, and a new snapshot follows
    warnOfLossAfter(GRACE_MILLISECONDS);
    // While CONNECTING, the browser retries. CLOSED means that it got a response after which it
    // does not retry.
    if (stream.readyState === EventSource.CLOSED) void retryAfterRejection();
  };
}

/**
 * Warns of a lost connection if the server sends nothing by then. Short interruptions cause no
 * warning.
 */
function warnOfLossAfter(milliseconds: number): void {
  clearTimeout(lostTimer);
  lostTimer = window.setTimeout(() => {
    connection.value = "lost";
  }, milliseconds);
}

/**
 * Retries after a rejected request. EventSource hides the status, so a call detects a 401 and shows
 * the sign-in page.
 */
async function retryAfterRejection(): Promise<void> {
  try {
    await api.session();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) return;
  }
  const delay = RETRY_MILLISECONDS[Math.min(failures, RETRY_MILLISECONDS.length - 1)];
  failures += 1;
  clearTimeout(retryTimer);
  retryTimer = window.setTimeout(reopen, delay);
}

function close(): void {
  source?.close();
  source = null;
  clearTimeout(silenceTimer);
  clearTimeout(retryTimer);
  clearTimeout(lostTimer);
}

function reopen(): void {
  if (!wanted) return;
  close();
  open();
  warnOfLossAfter(GRACE_MILLISECONDS);
}

/** Closes the stream of a hidden tab: a browser allows six connections to a host. */
function onVisibility(): void {
  clearTimeout(hiddenTimer);
  if (document.visibilityState === "hidden") {
    hiddenTimer = window.setTimeout(close, HIDDEN_MILLISECONDS);
  } else if (wanted && !source) {
    open();
  }
}

function onOnline(): void {
  if (connection.peek() === "lost") reopen();
}

export function startLive(): void {
  wanted = true;
  connection.value = "connecting";
  document.addEventListener("visibilitychange", onVisibility);
  window.addEventListener("online", onOnline);
  open();
}

export function stopLive(): void {
  wanted = false;
  close();
  clearTimeout(hiddenTimer);
  document.removeEventListener("visibilitychange", onVisibility);
  window.removeEventListener("online", onOnline);
  workspaces.value = new Map();
  loaded.value = false;
  forgetDetail();
  announcement.value = "";
}
