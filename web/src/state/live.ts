/** The live list: what the server last said about one's own workspaces. */
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

/** How many of one's own workspaces run, or shall. */
export const runningCount = computed(() => [...workspaces.value.values()].filter(isRunning).length);

/** Which workspace the latest event was about ("*" for a snapshot); a new object for every event. */
export const lastEvent = signal<{ id: string } | null>(null);

/** What a screen reader should hear next. */
export const announcement = signal("");

const GRACE_MILLISECONDS = 1_500;
const SLOW_MILLISECONDS = 10_000;
/** Heartbeats come every 30 s; two missed and a bit mean that nobody is there. */
const SILENCE_MILLISECONDS = 75_000;
const HIDDEN_MILLISECONDS = 20_000;
const RETRY_MILLISECONDS = [1_000, 2_000, 5_000, 10_000] as const;

/** Answers and events overtake one another; what is older than what is shown is dropped. */
export function merge(
  current: ReadonlyMap<string, Workspace>,
  incoming: Workspace,
): ReadonlyMap<string, Workspace> {
  const known = current.get(incoming.id);
  if (known && incoming.version < known.version) return current;
  return new Map(current).set(incoming.id, incoming);
}

/** Takes in the answer to an action of this user, ahead of its event. */
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

function listen<T>(stream: EventSource, name: string, take: (data: T) => void): void {
  stream.addEventListener(name, (event) => {
    if (stream !== source) return;
    heard();
    take(JSON.parse((event as MessageEvent<string>).data) as T);
  });
}

function heard(): void {
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
  expectLoss(SLOW_MILLISECONDS);
  let pieces: Workspace[] = [];
  listen<{ items: Workspace[]; more: boolean }>(stream, "snapshot", ({ items, more }) => {
    pieces = [...pieces, ...items];
    if (more) return;
    workspaces.value = new Map(pieces.map((item) => [item.id, item]));
    pieces = [];
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
    pieces = []; // the browser reconnects with this same object, and a new snapshot follows
    expectLoss(GRACE_MILLISECONDS);
    // While CONNECTING the browser tries again by itself; CLOSED means that it got an answer it will not retry.
    if (stream.readyState === EventSource.CLOSED) void retryAfterRefusal();
  };
}

/** Warns unless something is heard by then: a short interruption is not worth it. */
function expectLoss(milliseconds: number): void {
  clearTimeout(lostTimer);
  lostTimer = window.setTimeout(() => {
    connection.value = "lost";
  }, milliseconds);
}

/** EventSource does not say why it was refused: asking for the session turns a 401 into the sign-in page. */
async function retryAfterRefusal(): Promise<void> {
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
  expectLoss(GRACE_MILLISECONDS);
}

/** A browser allows six connections to one host; tabs that nobody sees must not use them up. */
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
