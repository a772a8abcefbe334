import { useState } from "preact/hooks";

import { api } from "../api";
import { bytes, date } from "../format";
import { messages } from "../i18n";
import { showDialog } from "../state/dialogs";
import { session } from "../state/session";
import { useTask } from "../state/task";
import type { ListedAccount } from "../types";
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
  const setRole = async (role: ListedAccount["role"]) => {
    await task.run(() => api.patchUser(user.id, { role }));
    onChanged();
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
              value={user.role}
              disabled={task.busy}
              onChange={(role) => void setRole(role)}
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
      {showsTokens && (
        <div class="row-details">
          <TokenPanel accountId={user.id} />
        </div>
      )}
    </li>
  );
}
