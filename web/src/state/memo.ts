/** Saves memos without overwriting a newer one that the user has not seen. */

import { api } from "../api";
import type { DetailedWorkspace } from "../types";
import { cacheDetail } from "./detail";
import { applyWorkspace } from "./live";

/**
 * Saves the text, unless the memo on the server has changed since it was shown. Returns whether it was saved. If
 * not, the newer memo is loaded, and the editor shows the conflict.
 */
export async function saveMemo(shown: DetailedWorkspace, text: string): Promise<boolean> {
  const latest = await api.workspace(shown.id);
  cacheDetail(latest);
  if (latest.memo !== shown.memo) return false;
  const saved = await api.patchWorkspace(shown.id, { memo: text });
  cacheDetail(saved);
  applyWorkspace(saved);
  return true;
}
