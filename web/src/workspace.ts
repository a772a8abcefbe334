/** What can be done with a workspace, and how lists of them are ordered: pure decisions. */
import type { Operation, Phase, RequestedState, Workspace } from "./types";

export type Action =
  | "open"
  | "start"
  | "stop"
  | "restore"
  | "extend"
  | "cancel"
  | "recover"
  | "archive"
  | "undelete"
  | "delete";

export type Viewer = "owner" | "admin";

const CANCELLABLE: ReadonlySet<Operation> = new Set(["PROVISIONING", "RESTORING", "STARTING", "ARCHIVING"]);

/** Admins care for other people's workspaces without entering or editing them. */
const ADMIN_ACTIONS: ReadonlySet<Action> = new Set(["stop", "recover", "delete", "undelete"]);

export const REQUESTED_STATES: Partial<Record<Action, RequestedState>> = {
  start: "RUNNING",
  stop: "STANDBY",
  restore: "STANDBY",
  archive: "ARCHIVED",
};

export function actionsFor(workspace: Workspace, viewer: Viewer): Action[] {
  const actions = ownerActions(workspace);
  return viewer === "owner" ? actions : actions.filter((action) => ADMIN_ACTIONS.has(action));
}

const PLACES: readonly (readonly Action[])[] = [
  ["open", "recover", "undelete"],
  ["start", "stop", "cancel"],
  ["extend"],
  ["archive", "restore"],
  ["delete"],
];

/** The actions in their places. A place stays where it is while the others come and go; undefined is an empty one. */
export function placesFor(actions: readonly Action[]): (Action | undefined)[] {
  return PLACES.map((place) => place.find((action) => actions.includes(action)));
}

function ownerActions(workspace: Workspace): Action[] {
  if (workspace.deleted_at !== null) return workspace.operation === "NONE" ? ["undelete", "delete"] : [];
  if (workspace.operation !== "NONE") return duringOperation(workspace);
  if (workspace.phase === "ERROR") return workspace.ways_out.length > 0 ? ["recover", "delete"] : ["delete"];
  const actions = atRest(workspace.phase);
  const waitsForStart = workspace.phase === "STANDBY" && workspace.desired_state === "RUNNING";
  if (waitsForStart) actions.splice(actions.indexOf("start"), 1, "stop");
  return actions;
}

function duringOperation(workspace: Workspace): Action[] {
  const actions: Action[] = [];
  if (workspace.desired_state === "RUNNING") actions.push("open");
  if (CANCELLABLE.has(workspace.operation) && workspace.desired_state !== "DELETED") actions.push("cancel");
  return actions;
}

function atRest(phase: Phase): Action[] {
  switch (phase) {
    case "RUNNING":
      return ["open", "stop", "extend", "archive", "delete"];
    case "STANDBY":
      return ["open", "start", "extend", "archive", "delete"];
    case "ARCHIVED":
      return ["open", "start", "restore", "delete"];
    case "PENDING":
      return ["open", "start", "delete"];
    case "ERROR":
    case "DELETING":
    case "DELETED":
      return [];
  }
}

/** Whether its owner has to choose how to recover it, rather than only to try again. */
export const asksHowToRecover = ({ ways_out }: Workspace) => ways_out.some((way) => way !== "look_again");

/** Whether opening it has to ask for its start first: a visit alone does not bring back an archive. */
export function startsWhenOpened(workspace: Workspace): boolean {
  const rests = workspace.phase === "ARCHIVED" || workspace.phase === "PENDING";
  return rests && workspace.operation === "NONE" && workspace.desired_state !== "RUNNING";
}

/** A requested that no operation serves yet: queued, or waiting for its next retry. */
export function isWaiting(workspace: Workspace): boolean {
  return (
    workspace.operation === "NONE" &&
    ["PENDING", "ARCHIVED", "STANDBY", "RUNNING"].includes(workspace.phase) &&
    workspace.desired_state !== workspace.phase
  );
}

export type Deadline = { kind: "standby" | "archive"; at: string };

/** The next thing that a TTL will do by itself. */
export function nextDeadline(workspace: Workspace): Deadline | null {
  if (workspace.operation !== "NONE" || workspace.deleted_at !== null) return null;
  if (workspace.phase === "RUNNING" && workspace.standby_at)
    return { kind: "standby", at: workspace.standby_at };
  if (workspace.phase === "STANDBY" && workspace.archive_at)
    return { kind: "archive", at: workspace.archive_at };
  return null;
}

export type SortKey = "activity" | "created" | "name" | "phase";
export const SORT_KEYS: readonly SortKey[] = ["activity", "created", "name", "phase"];

export const PHASES: readonly Phase[] = [
  "RUNNING",
  "STANDBY",
  "ARCHIVED",
  "PENDING",
  "ERROR",
  "DELETING",
  "DELETED",
];
export const LIVING_PHASES: readonly Phase[] = ["RUNNING", "STANDBY", "ARCHIVED", "PENDING", "ERROR"];

const PHASE_ORDER: Record<Phase, number> = {
  ERROR: 0,
  RUNNING: 1,
  STANDBY: 2,
  PENDING: 3,
  ARCHIVED: 4,
  DELETING: 5,
  DELETED: 6,
};

/** A new workspace carries the time of its creation as its last use. */
export const wasUsed = (workspace: Workspace) => workspace.last_access_at !== workspace.created_at;

/** Whether it runs, or is about to. */
export const isRunning = ({ phase, desired_state }: Workspace) =>
  phase === "RUNNING" || (phase !== "ERROR" && desired_state === "RUNNING");
const byName = (a: Workspace, b: Workspace) =>
  a.name.localeCompare(b.name, undefined, { numeric: true }) || a.id.localeCompare(b.id);

const COMPARE: Record<SortKey, (a: Workspace, b: Workspace) => number> = {
  activity: (a, b) =>
    Number(isRunning(b)) - Number(isRunning(a)) ||
    b.last_access_at.localeCompare(a.last_access_at) ||
    byName(a, b),
  created: (a, b) => b.created_at.localeCompare(a.created_at) || byName(a, b),
  name: byName,
  phase: (a, b) => PHASE_ORDER[a.phase] - PHASE_ORDER[b.phase] || byName(a, b),
};

export interface Selection {
  query: string;
  phase: Phase | "";
  sort: SortKey;
}

export const wordsOf = (query: string): string[] => query.toLowerCase().split(/\s+/).filter(Boolean);

/** `found` are the workspaces that the server found for the query: only it can search memos. */
export function select(
  workspaces: Iterable<Workspace>,
  { query, phase, sort }: Selection,
  found: ReadonlySet<string>,
): Workspace[] {
  const words = wordsOf(query);
  const matches = (workspace: Workspace) => {
    if (phase && workspace.phase !== phase) return false;
    const text = `${workspace.name}\n${workspace.description}`.toLowerCase();
    return found.has(workspace.id) || words.every((word) => text.includes(word));
  };
  return [...workspaces].filter(matches).sort(COMPARE[sort]);
}
