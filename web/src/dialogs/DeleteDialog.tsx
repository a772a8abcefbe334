import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { period } from "../format";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { removeWorkspace } from "../state/live";
import { trashRetentionSeconds } from "../state/session";
import { useTask } from "../state/task";
import type { Workspace } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

interface Props {
  workspace: Workspace;
  onDone: () => void;
}

export function DeleteDialog({ workspace, onDone }: Props) {
  const text = messages.value.remove;
  const task = useTask();
  const undoable = period(trashRetentionSeconds.value);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!(await task.run(() => api.deleteWorkspace(workspace.id)))) return;
    removeWorkspace(workspace.id);
    closeDialog();
    onDone();
  };
  return (
    <Modal title={text.title(workspace.name)}>
      <form onSubmit={submit}>
        <p>{workspace.phase === "ERROR" ? text.errorText(undoable) : text.text(undoable)}</p>
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.confirm} busy={task.busy} danger testId="confirm-delete" />
      </form>
    </Modal>
  );
}
