import { useState } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { Field } from "../components/Field";
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

/** Moves a workspace to the trash, or deletes it permanently after its name is typed. */
export function DeleteDialog({ workspace, onDone }: Props) {
  const text = messages.value.remove;
  const task = useTask();
  const isInTrash = workspace.deleted_at !== null;
  const [isForGood, setForGood] = useState(isInTrash);
  const [typed, setTyped] = useState("");
  const undoable = period(trashRetentionSeconds.value);
  const isConfirmed = !isForGood || typed === workspace.name;
  const call = () =>
    isForGood ? api.deleteWithoutArchive(workspace.id, typed) : api.deleteWorkspace(workspace.id);
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!isConfirmed || !(await task.run(call))) return;
    removeWorkspace(workspace.id);
    closeDialog();
    onDone();
  };
  return (
    <Modal title={text.title(workspace.name)}>
      <form onSubmit={submit}>
        {!isForGood && <p>{workspace.phase === "ERROR" ? text.errorText(undoable) : text.text(undoable)}</p>}
        {!isInTrash && (
          <label class="choice">
            <input
              type="checkbox"
              checked={isForGood}
              data-testid="delete-for-good"
              onChange={(event) => setForGood(event.currentTarget.checked)}
            />
            {text.forGood}
          </label>
        )}
        {isForGood && (
          <>
            <p class="danger" role="alert">
              {text.forGoodText(workspace.name)}
            </p>
            <Field label={text.typeName(workspace.name)}>
              {(ids) => (
                <input
                  {...ids}
                  value={typed}
                  autocomplete="off"
                  data-testid="typed-name"
                  onInput={(event) => setTyped(event.currentTarget.value)}
                />
              )}
            </Field>
          </>
        )}
        <ErrorNote error={task.error} />
        <DialogButtons
          submit={isForGood ? text.confirmForGood : text.confirm}
          busy={task.busy || !isConfirmed}
          danger
          testId="confirm-delete"
        />
      </form>
    </Modal>
  );
}
