import { useState } from "preact/hooks";

import { api } from "../api";
import { ErrorNote } from "../components/ErrorNote";
import { PageTitle } from "../components/PageTitle";
import { PasswordField } from "../components/PasswordField";
import { TokenPanel } from "../components/TokenPanel";
import { bytes } from "../format";
import { messages } from "../i18n";
import { showDialog } from "../state/dialogs";
import { session } from "../state/session";
import { useTask } from "../state/task";

export function AccountPage() {
  const text = messages.value;
  const user = session.value!.user;
  return (
    <>
      <PageTitle title={text.account.title} />
      <p class="muted">{text.account.signedInAs(user.username, text.roles[user.role])}</p>
      <p class="muted">{archivesText()}</p>
      <section class="panel narrow">
        <h2>{text.account.password}</h2>
        <PasswordForm />
      </section>
      <section class="panel narrow">
        <h2>{text.tokens.title}</h2>
        <TokenPanel accountId={null} />
      </section>
      <p>
        <button type="button" class="button" onClick={() => showDialog({ kind: "help" })}>
          {text.nav.help}
        </button>{" "}
        <a class="button" href="/docs" data-testid="api-docs">
          {text.docs.title}
        </a>
      </p>
    </>
  );
}

function archivesText(): string {
  const text = messages.value.account;
  const { bytes: taken, max_bytes: most } = session.value!.archives;
  return most === null ? text.archives(bytes(taken)) : text.archivesOf(bytes(taken), bytes(most));
}

function PasswordForm() {
  const text = messages.value.account;
  const task = useTask();
  const [current, setCurrent] = useState("");
  const [next, setNext] = useState("");
  const [repeat, setRepeat] = useState("");
  const [mismatch, setMismatch] = useState(false);
  const [done, setDone] = useState(false);

  const submit = async (event: Event) => {
    event.preventDefault();
    setDone(false);
    setMismatch(next !== repeat);
    if (next !== repeat || !(await task.run(() => api.changePassword(current, next)))) return;
    setDone(true);
    for (const clear of [setCurrent, setNext, setRepeat]) clear("");
  };
  return (
    <form onSubmit={submit}>
      <PasswordField label={text.current} value={current} onInput={setCurrent} testId="password-current" />
      <PasswordField label={text.next} value={next} onInput={setNext} isNew testId="password-new" />
      <PasswordField
        label={text.repeat}
        value={repeat}
        onInput={setRepeat}
        isNew
        isRepeated
        testId="password-repeat"
      />
      {mismatch && (
        <p class="note note-error" role="alert">
          {text.mismatch}
        </p>
      )}
      <ErrorNote error={task.error} />
      <p role="status" class={done ? "note note-good" : ""}>
        {done && text.done}
      </p>
      <button
        type="submit"
        class="button button-primary"
        aria-disabled={task.busy}
        data-testid="password-submit"
      >
        {text.submit}
      </button>
    </form>
  );
}
