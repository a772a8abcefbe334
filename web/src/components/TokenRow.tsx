import { date } from "../format";
import { messages } from "../i18n";
import { now } from "../state/clock";
import { showDialog } from "../state/dialogs";
import { workspaces } from "../state/live";
import type { Token } from "../types";
import { Time } from "./Time";

interface Props {
  token: Token;
  accountId: string | null;
  onRevoked: () => void;
}

export function TokenRow({ token, accountId, onRevoked }: Props) {
  const text = messages.value.tokens;
  return (
    <li class="row" data-testid="token-row" data-name={token.name}>
      <div class="row-text">
        <p class="row-title">
          {token.name} <code class="muted">{token.prefix}…</code>
        </p>
        <p class="hint">{token.scopes.map((scope) => text.scopes[scope]).join(" · ")}</p>
        <p class="hint">{boundTo(token)}</p>
        <p class="hint">
          {text.created(date(token.created_at))} · {expiry(token)} ·{" "}
          {token.last_used_at === null ? (
            text.neverUsed
          ) : (
            <>
              {text.lastUsed} <Time at={token.last_used_at} as="relative" />
            </>
          )}
        </p>
      </div>
      <div class="row-actions">
        <button
          type="button"
          class="button button-danger"
          aria-label={`${text.revoke}: ${token.name}`}
          onClick={() => showDialog({ kind: "revoke-token", accountId, token, onDone: onRevoked })}
        >
          {text.revoke}
        </button>
      </div>
    </li>
  );
}

function boundTo(token: Token): string {
  const text = messages.value.tokens;
  if (token.workspaces === null) return text.allWorkspaces;
  return text.onlyWorkspaces(token.workspaces.map((id) => workspaces.value.get(id)?.name ?? id).join(", "));
}

function expiry(token: Token): string {
  const text = messages.value.tokens;
  if (token.expires_at === null) return text.neverExpires;
  const day = date(token.expires_at);
  return Date.parse(token.expires_at) <= now.value ? text.expired(day) : text.expires(day);
}
