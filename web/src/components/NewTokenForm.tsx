import { useState } from "preact/hooks";

import { api } from "../api";
import { messages } from "../i18n";
import { useConfirmation } from "../state/confirmation";
import { isAdmin } from "../state/session";
import { useTask } from "../state/task";
import type { MadeToken, Scope } from "../types";
import { ConfirmationField } from "./ConfirmationField";
import { ErrorNote } from "./ErrorNote";
import { Field } from "./Field";
import { ScopeChoice } from "./ScopeChoice";
import { WorkspaceChoice } from "./WorkspaceChoice";

const LIFETIMES = [30, 90, 365, null];

interface Props {
  accountId: string | null;
  onMade: (token: MadeToken) => void;
}

/** The form for a new token. It asks for the password only when the API does. */
export function NewTokenForm({ accountId, onMade }: Props) {
  const text = messages.value.tokens;
  const task = useTask();
  const [name, setName] = useState("");
  const [scopes, setScopes] = useState<Scope[]>(["read"]);
  const [bound, setBound] = useState<string[] | null>(null);
  const [days, setDays] = useState<number | null>(90);
  const confirmation = useConfirmation();
  const offered: Scope[] = ["read", "manage", "use"];
  if (accountId === null && isAdmin.value) offered.push("admin");

  const make = async () => {
    const body = { name: name.trim(), scopes, workspaces: bound, expires_in_days: days };
    onMade(await confirmation.run(() => api.makeToken(accountId, body)));
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    if (await task.run(make)) setName("");
  };
  return (
    <form class="token-form" onSubmit={submit} autocomplete="off">
      <h3>{text.add}</h3>
      <Field label={text.name} hint={text.nameHint}>
        {(ids) => (
          <input
            {...ids}
            type="text"
            required
            maxLength={64}
            data-testid="token-name"
            value={name}
            onInput={(event) => setName(event.currentTarget.value)}
          />
        )}
      </Field>
      <ScopeChoice offered={offered} chosen={scopes} onChange={setScopes} />
      {accountId === null && <WorkspaceChoice chosen={bound} onChange={setBound} />}
      <Field label={text.lifetime}>
        {(ids) => (
          <select
            {...ids}
            value={days ?? ""}
            onChange={(event) => setDays(Number(event.currentTarget.value) || null)}
          >
            {LIFETIMES.map((choice) => (
              <option key={choice} value={choice ?? ""}>
                {choice === null ? text.forEver : text.days(choice)}
              </option>
            ))}
          </select>
        )}
      </Field>
      <ConfirmationField confirmation={confirmation} testId="token-password" />
      <ErrorNote error={task.error} />
      <button
        type="submit"
        class="button button-primary"
        aria-disabled={task.busy}
        data-testid="token-submit"
      >
        {text.make}
      </button>
    </form>
  );
}
