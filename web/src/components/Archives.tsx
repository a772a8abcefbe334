import { api } from "../api";
import { bytes, dateTime } from "../format";
import { messages } from "../i18n";
import { showDialog } from "../state/dialogs";
import { useLoader } from "../state/loader";
import type { Archive, Workspace } from "../types";
import { canRestoreArchive } from "../workspace";
import { ErrorNote } from "./ErrorNote";
import { Icon } from "./Icon";

const POLL_MILLISECONDS = 60_000;

interface Props {
  workspace: Workspace;
  isOwner: boolean;
}

/** The archives of a workspace, newest first. Its owner can download each, and restore one while it is stopped or archived. */
export function Archives({ workspace, isOwner }: Props) {
  const text = messages.value.archives;
  const { id, phase, operation, archive_to_restore: chosen } = workspace;
  const archives = useLoader(
    `${id} ${phase} ${operation} ${chosen}`,
    (signal) => api.archives(id, signal),
    POLL_MILLISECONDS,
  );
  const items = archives.data?.items ?? [];
  const pending = items.find((archive) => archive.archive_op_id === chosen);
  const canRestore = isOwner && canRestoreArchive(workspace);
  return (
    <>
      <ErrorNote error={archives.error} />
      {archives.data && items.length === 0 && <p class="muted">{text.none}</p>}
      {pending && <p>{text.pending(dateTime(pending.created_at))}</p>}
      {isOwner && phase === "RUNNING" && items.length > 0 && <p class="muted">{text.stopFirst}</p>}
      <ul class="rows" data-testid="archives">
        {items.map((archive) => (
          <Row
            key={archive.archive_op_id}
            workspace={workspace}
            archive={archive}
            isOwner={isOwner}
            canRestore={canRestore}
          />
        ))}
      </ul>
    </>
  );
}

function Row(props: { workspace: Workspace; archive: Archive; isOwner: boolean; canRestore: boolean }) {
  const text = messages.value.archives;
  const { workspace, archive } = props;
  const made = dateTime(archive.created_at);
  return (
    <li class="row" data-testid="archive" data-current={archive.current}>
      <div class="row-text">
        <p>{made}</p>
        <p class="hint">
          {archive.current ? `${bytes(archive.bytes)} · ${text.current}` : bytes(archive.bytes)}
        </p>
      </div>
      {props.isOwner && (
        <div class="row-actions">
          <a
            class="button"
            href={api.archiveUrl(workspace.id, archive.archive_op_id)}
            download
            data-testid="download-archive"
            aria-label={text.downloadOf(made)}
          >
            <Icon name="download" />
            {text.download}
          </a>
          {props.canRestore && (
            <button
              type="button"
              class="button"
              data-testid="restore-archive"
              aria-label={text.restoreOf(made)}
              onClick={() => showDialog({ kind: "restore", workspace, archive })}
            >
              <Icon name="restore" />
              {text.restore}
            </button>
          )}
        </div>
      )}
    </li>
  );
}
