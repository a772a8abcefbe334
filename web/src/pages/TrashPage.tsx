import { useEffect } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { PageTitle } from "../components/PageTitle";
import { WorkspaceCard } from "../components/WorkspaceCard";
import { messages } from "../i18n";
import { lastEvent } from "../state/live";
import { useLoader } from "../state/loader";

const WHILE_BUSY_MILLISECONDS = 2_000;
const WHILE_IDLE_MILLISECONDS = 30_000;

export function TrashPage() {
  const text = messages.value.trash;
  const trash = useTrash();
  const items = trash.data?.items ?? [];
  return (
    <>
      <PageTitle title={text.title} />
      <p class="muted">{text.text}</p>
      <ErrorNote error={trash.error} />
      {trash.data && items.length === 0 && (
        <div class="empty">
          <p>{text.empty}</p>
        </div>
      )}
      <ul class="cards">
        {items.map((workspace) => (
          <WorkspaceCard key={workspace.id} workspace={workspace} viewer="owner" onDone={trash.reload} />
        ))}
      </ul>
    </>
  );
}

/** Loads the trash, and polls it: events report only workspaces outside the trash. */
function useTrash() {
  const trash = useLoader(
    "trash",
    (signal) => api.workspaces({ trash: true, limit: 200 }, signal),
    WHILE_IDLE_MILLISECONDS,
  );
  const busy =
    trash.data?.items.some((item) => item.operation !== "NONE" || item.phase === "DELETING") ?? false;
  useEffect(() => {
    if (!busy) return;
    const timer = setInterval(trash.reload, WHILE_BUSY_MILLISECONDS);
    return () => clearInterval(timer);
  }, [busy]);
  useEffect(() => {
    let first = true;
    return lastEvent.subscribe(() => {
      if (!first) trash.reload();
      first = false;
    });
  }, []);
  return trash;
}
