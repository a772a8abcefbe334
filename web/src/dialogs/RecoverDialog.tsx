import { useState } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { bytes, dateTime } from "../format";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { applyWorkspace } from "../state/live";
import { useLoader } from "../state/loader";
import { useTask } from "../state/task";
import type { Archive, Workspace } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

const EMPTY = "empty";

interface Props {
  workspace: Workspace;
  onDone: () => void;
}

/** A lost home never comes back as something its owner did not choose, so nothing is chosen beforehand. */
export function RecoverDialog({ workspace, onDone }: Props) {
  const text = messages.value.recover;
  const task = useTask();
  const archives = useLoader(workspace.id, () => api.archives(workspace.id));
  const [choice, setChoice] = useState("");

  const submit = async (event: Event) => {
    event.preventDefault();
    const source =
      choice === EMPTY ? { from: "empty" as const } : { from: "archive" as const, archive_op_id: choice };
    const recovered = await task.run(async () => applyWorkspace(await api.recover(workspace.id, source)));
    if (!recovered) return;
    closeDialog();
    onDone();
  };

  return (
    <Modal title={text.title(workspace.name)}>
      <form onSubmit={submit}>
        <p>{text.text}</p>
        <fieldset>
          <legend>{text.archives}</legend>
          {archives.data?.items.map((archive) => (
            <Choice
              key={archive.archive_op_id}
              value={archive.archive_op_id}
              label={text.archive(dateTime(archive.created_at))}
              hint={describe(archive, text.current)}
              choice={choice}
              onChoose={setChoice}
            />
          ))}
          {archives.data?.items.length === 0 && <p class="muted">{text.none}</p>}
          <Choice value={EMPTY} label={text.empty} hint={text.emptyHint} choice={choice} onChoose={setChoice} />
        </fieldset>
        <ErrorNote error={archives.error} />
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.submit} busy={task.busy} testId="confirm-recover" />
      </form>
    </Modal>
  );
}

function describe(archive: Archive, current: string): string {
  const parts = [archive.bytes === null ? "" : bytes(archive.bytes), archive.current ? current : ""];
  return parts.filter(Boolean).join(" · ");
}

interface ChoiceProps {
  value: string;
  label: string;
  hint: string;
  choice: string;
  onChoose: (value: string) => void;
}

function Choice({ value, label, hint, choice, onChoose }: ChoiceProps) {
  return (
    <label class="choice">
      <input
        type="radio"
        name="recover-source"
        required
        value={value}
        checked={choice === value}
        onChange={() => onChoose(value)}
      />
      <span>
        {label}
        <span class="hint">{hint}</span>
      </span>
    </label>
  );
}
