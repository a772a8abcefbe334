import { useState } from "preact/hooks";

import { api } from "../api";
import { bytes, date } from "../format";
import { messages } from "../i18n";
import { useConfirmation } from "../state/confirmation";
import { showDialog } from "../state/dialogs";
import { session } from "../state/session";
import { useTask } from "../state/task";
import type { ListedAccount, Role } from "../types";
import { ConfirmationField } from "./ConfirmationField";
import { ErrorNote } from "./ErrorNote";
import { Icon } from "./Icon";
import { RoleSelect } from "./RoleSelect";
import { TokenPanel } from "./TokenPanel";

interface Props {
  user: ListedAccount;
  onChanged: () => void;
}

export function UserRow({ user, onChanged }: Props) {
  const text = messages.value;
  const task = useTask();
  const [showsTokens, setShowsTokens] = useState(false);
  const isSelf = session.value?.user.id === user.id;
  const confirmation = useConfirmation();
  const changeRole = async (role: Role) => {
    await task.run(() => confirmation.run(() => api.patchUser(user.id, { role })));
    onChanged();
  };
  const chooseRole = (role: Role) => {
    confirmation.clear();
    task.clear();
    if (role !== user.role) void changeRole(role);
  };
  const confirmRole = (event: Event) => {
    event.preventDefault();
    void changeRole("admin");
  };
  return (
    <li class="row" data-testid="user-row" data-username={user.username}>
      <div class="row-text">
        <p class="row-title">
          {user.username}
          {isSelf && <span class="muted">({text.admin.you})</span>}
          {user.service && <span class="muted">({text.admin.serviceAccount})</span>}
        </p>
        <p class="hint">{text.admin.since(date(user.created_at))}</p>
        {user.archive_bytes > 0 && <p class="hint">{text.admin.archives(bytes(user.archive_bytes))}</p>}
      </div>
      <div class="row-actions">
        {user.service ? (
          <button
            type="button"
            class="button"
            aria-expanded={showsTokens}
            aria-label={`${text.tokens.title}: ${user.username}`}
            data-testid="user-tokens"
            onClick={() => setShowsTokens(!showsTokens)}
          >
            {text.tokens.title}
          </button>
        ) : (
          <>
            <RoleSelect
              aria-label={`${text.admin.role}: ${user.username}`}
              value={confirmation.isNeeded ? "admin" : user.role}
              disabled={task.busy}
              onChange={chooseRole}
            />
            <button
              type="button"
              class="button"
              aria-label={`${text.admin.setPassword}: ${user.username}`}
              onClick={() => showDialog({ kind: "set-password", user })}
            >
              {text.admin.setPassword}
            </button>
          </>
        )}
        {!isSelf && (
          <button
            type="button"
            class="button button-danger"
            aria-label={`${text.admin.deleteUser}: ${user.username}`}
            onClick={() => showDialog({ kind: "delete-user", user, onDone: onChanged })}
          >
            <Icon name="delete" />
            {text.actions.delete}
          </button>
        )}
      </div>
      <ErrorNote error={task.error} onDismiss={task.clear} />
      {confirmation.isNeeded && (
        <form class="row-details" onSubmit={confirmRole}>
          <ConfirmationField confirmation={confirmation} testId="role-confirmation" />
          <button
            type="submit"
            class="button button-primary"
            aria-disabled={task.busy}
            data-testid="role-submit"
          >
            {text.dialog.save}
          </button>
        </form>
      )}
      {showsTokens && (
        <div class="row-details">
          <TokenPanel accountId={user.id} />
        </div>
      )}
    </li>
  );
}
