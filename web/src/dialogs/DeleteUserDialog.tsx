import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { useTask } from "../state/task";
import type { User } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

interface Props {
  user: User;
  onDone: () => void;
}

export function DeleteUserDialog({ user, onDone }: Props) {
  const text = messages.value.admin;
  const task = useTask();
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!(await task.run(() => api.deleteUser(user.id)))) return;
    closeDialog();
    onDone();
  };
  return (
    <Modal title={text.deleteUserTitle(user.username)}>
      <form onSubmit={submit}>
        <p>{text.deleteUserText}</p>
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.deleteUser} busy={task.busy} danger testId="confirm-delete-user" />
      </form>
    </Modal>
  );
}
