import { api } from "../api";
import type { Workspace } from "../types";
import { type Action, asksHowToRecover, REQUESTED_STATES } from "../workspace";
import { showDialog } from "./dialogs";
import { applyWorkspace } from "./live";

const ONE_HOUR_SECONDS = 3600;

/** Performs an action, or opens its confirmation dialog. */
export async function perform(action: Action, workspace: Workspace, onDone: () => void): Promise<void> {
  if (action === "open") return startAndOpen(workspace);
  if (action === "delete") return showDialog({ kind: "delete", workspace, onDone });
  if (action === "recover" && asksHowToRecover(workspace)) {
    return showDialog({ kind: "recover", workspace, onDone });
  }
  applyWorkspace(await call(action, workspace.id));
  onDone();
}

/** Opens the tab before the call, because browsers allow that only in response to a click. */
async function startAndOpen(workspace: Workspace): Promise<void> {
  const tab = window.open("", "_blank");
  if (tab) tab.opener = null;
  try {
    applyWorkspace(await api.patchWorkspace(workspace.id, { desired_state: "RUNNING" }));
  } catch (problem) {
    tab?.close();
    throw problem;
  }
  (tab ?? window).location.href = workspace.url;
}

function call(action: Action, id: string): Promise<Workspace> {
  const requested = REQUESTED_STATES[action];
  if (requested) return api.patchWorkspace(id, { desired_state: requested });
  switch (action) {
    case "extend":
      return api.extend(id, ONE_HOUR_SECONDS);
    case "cancel":
      return api.cancel(id);
    case "undelete":
      return api.undelete(id);
    case "recover":
      return api.recover(id, {});
    default:
      throw new Error(`the action ${action} has no API call`);
  }
}
