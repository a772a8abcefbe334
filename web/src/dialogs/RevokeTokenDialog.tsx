import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { useTask } from "../state/task";
import type { Token } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

interface Props {
  accountId: string | null;
  token: Token;
  onDone: () => void;
}

export function RevokeTokenDialog({ accountId, token, onDone }: Props) {
  const text = messages.value.tokens;
  const task = useTask();
  const submit = async (event: Event) => {
    event.preventDefault();
    if (!(await task.run(() => api.revokeToken(accountId, token.id)))) return;
    closeDialog();
    onDone();
  };
  return (
    <Modal title={text.revokeTitle(token.name)}>
      <form onSubmit={submit}>
        <p>{text.revokeText}</p>
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.revoke} busy={task.busy} danger testId="confirm-revoke-token" />
      </form>
    </Modal>
  );
}
