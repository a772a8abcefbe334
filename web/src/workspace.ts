/** Pure rules: the actions on a workspace, and the order of lists of workspaces. */
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

/** Admins manage other users' workspaces, but do not open or edit them. */
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

const SLOTS: readonly (readonly Action[])[] = [
  ["open", "recover", "undelete"],
  ["start", "stop", "cancel"],
  ["extend"],
  ["archive", "restore"],
  ["delete"],
];

/**
 * Returns the action of each slot, or undefined. Fixed slots keep buttons in place while others
 * come and go.
 */
export function actionSlots(actions: readonly Action[]): (Action | undefined)[] {
  return SLOTS.map((slot) => slot.find((action) => actions.includes(action)));
}

function ownerActions(workspace: Workspace): Action[] {
  if (workspace.deleted_at !== null) return workspace.operation === "NONE" ? ["undelete", "delete"] : [];
  if (workspace.operation !== "NONE") return duringOperation(workspace);
  if (workspace.phase === "ERROR") return workspace.ways_out.length > 0 ? ["recover", "delete"] : ["delete"];
  if (workspace.archive_to_restore !== null) return ["cancel", "delete"];
  const actions = actionsWhileIdle(workspace.phase);
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

function actionsWhileIdle(phase: Phase): Action[] {
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

/** Returns whether an archive can be restored now: nothing runs, and nothing else is requested. */
export const canRestoreArchive = (workspace: Workspace) =>
  (workspace.phase === "STANDBY" || workspace.phase === "ARCHIVED") &&
  workspace.desired_state === workspace.phase &&
  workspace.operation === "NONE" &&
  workspace.archive_to_restore === null;

/** Returns whether the owner has to choose how to recover it, and cannot only try again. */
export const asksHowToRecover = ({ ways_out }: Workspace) => ways_out.some((way) => way !== "look_again");

/**
 * Returns whether it has to be started before it is opened: a visit alone does not restore an
 * archive.
 */
export function needsStartToOpen(workspace: Workspace): boolean {
  const hasNoHome = workspace.phase === "ARCHIVED" || workspace.phase === "PENDING";
  return hasNoHome && workspace.operation === "NONE" && workspace.desired_state !== "RUNNING";
}

/** Returns whether a desired state waits for its operation: queued, or before the next retry. */
export function isWaiting(workspace: Workspace): boolean {
  return (
    workspace.operation === "NONE" &&
    ["PENDING", "ARCHIVED", "STANDBY", "RUNNING"].includes(workspace.phase) &&
    workspace.desired_state !== workspace.phase
  );
}

export type Deadline = { kind: "standby" | "archive"; at: string };

/** Returns the next deadline of a TTL. */
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

/**
 * Returns whether it was ever used. A new workspace has its creation time as the time of its last
 * use.
 */
export const wasUsed = (workspace: Workspace) => workspace.last_access_at !== workspace.created_at;

/** Returns whether it runs, or is about to. */
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

/**
 * Filters and sorts workspaces. `found` are the ids that the server found: only it can search
 * memos.
 */
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
