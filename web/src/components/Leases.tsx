import { api } from "../api";
import { messages } from "../i18n";
import { useLoader } from "../state/loader";
import { useReloadOnEvent } from "../state/reload_on_event";
import { useTask } from "../state/task";
import type { Lease, Workspace } from "../types";
import { ErrorNote } from "./ErrorNote";
import { SentenceWithTime } from "./WorkspaceStatus";

const POLL_MILLISECONDS = 30_000;

/** The leases of a running workspace, which its owner can delete. Nothing if there are none. */
export function Leases({ workspace }: { workspace: Workspace }) {
  const text = messages.value.leases;
  const leases = useLoader(workspace.id, (signal) => api.leases(workspace.id, signal), POLL_MILLISECONDS);
  useReloadOnEvent(workspace.id, leases.reload);
  const items = leases.data?.items ?? [];
  if (items.length === 0 && !leases.error) return null;
  return (
    <section class="panel" data-testid="leases">
      <h2>{text.title}</h2>
      <ErrorNote error={leases.error} />
      <ul class="conditions">
        {items.map((lease) => (
          <li key={lease.id}>
            <LeaseRow workspaceId={workspace.id} lease={lease} onDone={leases.reload} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function LeaseRow({ workspaceId, lease, onDone }: { workspaceId: string; lease: Lease; onDone: () => void }) {
  const text = messages.value.leases;
  const task = useTask();
  const remove = () =>
    task.run(async () => {
      await api.deleteLease(workspaceId, lease.id);
      onDone();
    });
  return (
    <>
      <p>{lease.reason}</p>
      <p class="hint">
        <SentenceWithTime sentence={text.until} at={lease.expires_at} as="full" />
        {` · ${lease.actor}`}
      </p>
      <ErrorNote error={task.error} />
      <button
        type="button"
        class="button"
        aria-disabled={task.busy}
        aria-label={text.deleteOf(lease.reason)}
        data-testid="delete-lease"
        onClick={remove}
      >
        {text.delete}
      </button>
    </>
  );
}
