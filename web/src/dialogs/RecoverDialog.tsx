import { useState } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { bytes, dateTime } from "../format";
import { messages } from "../i18n";
import { closeDialog } from "../state/dialogs";
import { applyWorkspace } from "../state/live";
import { useLoader } from "../state/loader";
import { useTask } from "../state/task";
import type { Archive, Recovery, Workspace } from "../types";
import { DialogButtons } from "./DialogButtons";
import { Modal } from "./Modal";

const EMPTY = "empty";
const HOME = "home";
const LOOK_AGAIN = "look_again";

interface Props {
  workspace: Workspace;
  onDone: () => void;
}

/**
 * Choice of how to recover. Nothing is preselected: only the owner chooses what replaces a lost
 * home.
 */
export function RecoverDialog({ workspace, onDone }: Props) {
  const text = messages.value.recover;
  const task = useTask();
  const archives = useLoader(workspace.id, () => api.archives(workspace.id));
  const [choice, setChoice] = useState("");
  const options = workspace.ways_out;
  const canRetry = options.includes(LOOK_AGAIN);
  const archiveChoices = options.includes("archive") ? (archives.data?.items ?? []) : [];

  const submit = async (event: Event) => {
    event.preventDefault();
    const recovered = await task.run(async () =>
      applyWorkspace(await api.recover(workspace.id, recoveryFor(choice))),
    );
    if (!recovered) return;
    closeDialog();
    onDone();
  };

  return (
    <Modal title={text.title(workspace.name)}>
      <form onSubmit={submit}>
        <p>{canRetry || options.includes(HOME) ? text.chooseText : text.text}</p>
        <fieldset>
          <legend>{text.archives}</legend>
          {canRetry && (
            <Choice
              value={LOOK_AGAIN}
              label={text.retry}
              hint={text.retryHint}
              choice={choice}
              onChoose={setChoice}
            />
          )}
          {options.includes(HOME) && (
            <Choice
              value={HOME}
              label={text.home}
              hint={text.homeHint}
              choice={choice}
              onChoose={setChoice}
            />
          )}
          {archiveChoices.map((archive) => (
            <Choice
              key={archive.archive_op_id}
              value={archive.archive_op_id}
              label={text.archive(dateTime(archive.created_at))}
              hint={describe(archive, text.current)}
              choice={choice}
              onChoose={setChoice}
            />
          ))}
          {options.includes("archive") && archives.data?.items.length === 0 && (
            <p class="muted">{text.none}</p>
          )}
          {options.includes(EMPTY) && (
            <Choice
              value={EMPTY}
              label={text.empty}
              hint={text.emptyHint}
              choice={choice}
              onChoose={setChoice}
            />
          )}
        </fieldset>
        <ErrorNote error={archives.error} />
        <ErrorNote error={task.error} />
        <DialogButtons submit={text.submit} busy={task.busy} testId="confirm-recover" />
      </form>
    </Modal>
  );
}

function recoveryFor(choice: string): Recovery {
  if (choice === LOOK_AGAIN || choice === HOME) return {};
  return choice === EMPTY ? { from: "empty" } : { from: "archive", archive_op_id: choice };
}

function describe(archive: Archive, current: string): string {
  return archive.current ? `${bytes(archive.bytes)} · ${current}` : bytes(archive.bytes);
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
