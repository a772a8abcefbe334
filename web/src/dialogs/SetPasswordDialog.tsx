import { useState } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { PasswordField } from "../components/PasswordField";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { useTask } from "../state/task";
import type { User } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

export function SetPasswordDialog({ user }: { user: User }) {
  const text = messages.value;
  const task = useTask();
  const [password, setPassword] = useState("");
  const [yours, setYours] = useState("");
  const submit = async (event: Event) => {
    event.preventDefault();
    if (await task.run(() => api.patchUser(user.id, { password, your_password: yours }))) closeDialog();
  };
  return (
    <Modal title={text.admin.setPasswordTitle(user.username)}>
      <form onSubmit={submit}>
        <PasswordField
          label={text.account.next}
          value={password}
          onInput={setPassword}
          isNew
          testId="set-password"
        />
        <p class="hint">{text.admin.confirmSetPassword}</p>
        <PasswordField
          label={text.admin.yourPassword}
          value={yours}
          onInput={setYours}
          testId="your-password"
        />
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.dialog.save} busy={task.busy} busyText={text.dialog.saving} />
      </form>
    </Modal>
  );
}
