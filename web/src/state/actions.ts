import { api } from "../api";
import type { Workspace } from "../types";
import { WISH_OF, type Action } from "../workspace";
import { showDialog } from "./dialogs";
import { applyWorkspace } from "./live";

const ONE_HOUR_SECONDS = 3600;

/** Carries out an action, or opens the dialog that asks before it does. */
export async function perform(action: Action, workspace: Workspace, onDone: () => void): Promise<void> {
  if (action === "delete") return showDialog({ kind: "delete", workspace, onDone });
  if (action === "recover" && workspace.ways_out.includes("empty")) {
    return showDialog({ kind: "recover", workspace, onDone });
  }
  applyWorkspace(await call(action, workspace.id));
  onDone();
}

function call(action: Action, id: string): Promise<Workspace> {
  const wish = WISH_OF[action];
  if (wish) return api.patchWorkspace(id, { desired_state: wish });
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
      throw new Error(`${action} is not a call`);
  }
}
