/** Saving a memo without overwriting one that its author has not seen. */
import { api } from "../api";
import type { DetailedWorkspace } from "../types";
import { keepDetail } from "./detail";
import { applyWorkspace } from "./live";

/**
 * Saves the text, unless the memo on the server is no longer the one shown beside it. Returns whether it was saved;
 * if not, the newer memo is loaded and the editor shows the conflict.
 */
export async function saveMemo(shown: DetailedWorkspace, text: string): Promise<boolean> {
  const latest = await api.workspace(shown.id);
  keepDetail(latest);
  if (latest.memo !== shown.memo) return false;
  const saved = await api.patchWorkspace(shown.id, { memo: text });
  keepDetail(saved);
  applyWorkspace(saved);
  return true;
}
