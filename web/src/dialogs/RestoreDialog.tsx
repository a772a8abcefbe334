import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { dateTime, period } from "../format";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { applyWorkspace } from "../state/live";
import { trashRetentionSeconds } from "../state/session";
import { useTask } from "../state/task";
import type { Archive, Workspace } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

interface Props {
  workspace: Workspace;
  archive: Archive;
}

/** Says what a restore does to the present home, and requests it. */
export function RestoreDialog({ workspace, archive }: Props) {
  const text = messages.value.archives;
  const task = useTask();
  const made = dateTime(archive.created_at);
  const submit = async (event: Event) => {
    event.preventDefault();
    const requested = await task.run(async () =>
      applyWorkspace(await api.restoreArchive(workspace.id, archive.archive_op_id)),
    );
    if (requested) closeDialog();
  };
  return (
    <Modal title={text.confirmTitle(workspace.name)}>
      <form onSubmit={submit}>
        <p>{workspace.phase === "ARCHIVED" ? text.confirmArchived(made) : text.confirmStopped(made)}</p>
        <p>{text.confirmKept(period(trashRetentionSeconds.value))}</p>
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.restore} busy={task.busy} testId="confirm-restore" />
      </form>
    </Modal>
  );
}
