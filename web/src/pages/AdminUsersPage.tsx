import { useState } from "preact/hooks";

import { api } from "../api";
import { AdminTabs } from "../components/AdminTabs";
import { ConfirmationField } from "../components/ConfirmationField";
import { ErrorNote } from "../components/ErrorNote";
import { Field } from "../components/Field";
import { Pager } from "../components/Pager";
import { PageTitle } from "../components/PageTitle";
import { PasswordField } from "../components/PasswordField";
import { RoleSelect } from "../components/RoleSelect";
import { UserRow } from "../components/UserRow";
import { messages } from "../i18n";
import { useConfirmation } from "../state/confirmation";
import { useLoader } from "../state/loader";
import { useTask } from "../state/task";
import type { Role } from "../types";

const PAGE_SIZE = 50;

export function AdminUsersPage() {
  const text = messages.value.admin;
  const [offset, setOffset] = useState(0);
  const users = useLoader(`users from ${offset}`, (signal) =>
    api.users({ limit: PAGE_SIZE, offset }, signal),
  );
  return (
    <>
      <PageTitle title={text.users} />
      <AdminTabs />
      <ErrorNote error={users.error} />
      <ul class="panel rows">
        {users.data?.items.map((user) => (
          <UserRow key={user.id} user={user} onChanged={users.reload} />
        ))}
      </ul>
      <Pager offset={offset} pageSize={PAGE_SIZE} total={users.data?.total ?? 0} onMove={setOffset} />
      <section class="panel narrow">
        <h2>{text.addUser}</h2>
        <NewUserForm onCreated={users.reload} />
      </section>
    </>
  );
}

function NewUserForm({ onCreated }: { onCreated: () => void }) {
  const text = messages.value;
  const task = useTask();
  const confirmation = useConfirmation();
  const [username, setUsername] = useState("");
  const [password, setPassword] = useState("");
  const [role, setRole] = useState<Role>("user");
  const [isService, setIsService] = useState(false);

  const submit = async (event: Event) => {
    event.preventDefault();
    const account = isService ? { service: true } : { password, role };
    const create = () => api.createUser({ username: username.trim(), ...account });
    if (!(await task.run(() => confirmation.run(create)))) return;
    setUsername("");
    setPassword("");
    setRole("user");
    setIsService(false);
    onCreated();
  };
  return (
    <form onSubmit={submit} autocomplete="off">
      <Field label={text.login.username}>
        {(ids) => (
          <input
            {...ids}
            type="text"
            required
            maxLength={64}
            autoComplete="off"
            autoCapitalize="none"
            spellcheck={false}
            data-testid="user-name"
            value={username}
            onInput={(event) => setUsername(event.currentTarget.value)}
          />
        )}
      </Field>
      <label class="choice">
        <input
          type="checkbox"
          checked={isService}
          data-testid="user-service"
          onChange={(event) => {
            setIsService(event.currentTarget.checked);
            confirmation.clear();
          }}
        />
        <span>
          {text.admin.serviceAccount}
          <span class="hint"> {text.admin.serviceHint}</span>
        </span>
      </label>
      {!isService && (
        <>
          <PasswordField
            label={text.login.password}
            value={password}
            onInput={setPassword}
            isNew
            testId="user-password"
          />
          <Field label={text.admin.role}>
            {(ids) => <RoleSelect {...ids} value={role} onChange={setRole} />}
          </Field>
          <ConfirmationField confirmation={confirmation} testId="user-confirmation" />
        </>
      )}
      <ErrorNote error={task.error} />
      <button type="submit" class="button button-primary" aria-disabled={task.busy} data-testid="user-submit">
        {text.admin.createUser}
      </button>
    </form>
  );
}
