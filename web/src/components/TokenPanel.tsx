import { useState } from "preact/hooks";

import { api } from "../api";
import { messages } from "../i18n";
import { useLoader } from "../state/loader";
import type { MadeToken } from "../types";
import { ErrorNote } from "./ErrorNote";
import { NewTokenForm } from "./NewTokenForm";
import { NewTokenNote } from "./NewTokenNote";
import { TokenRow } from "./TokenRow";

interface Props {
  /** The service account whose tokens these are, or null for one's own. */
  accountId: string | null;
}

/** The tokens of an account, and the form for a new one. */
export function TokenPanel({ accountId }: Props) {
  const text = messages.value.tokens;
  const [made, setMade] = useState<MadeToken | null>(null);
  const tokens = useLoader(`tokens of ${accountId ?? "me"}`, (signal) => api.tokens(accountId, signal));
  const onMade = (token: MadeToken) => {
    setMade(token);
    tokens.reload();
  };
  const onRevoked = (id: string) => {
    if (made?.id === id) setMade(null);
    tokens.reload();
  };
  return (
    <>
      <p class="hint">{accountId === null ? text.about : text.aboutService}</p>
      <ErrorNote error={tokens.error} />
      {tokens.data?.items.length === 0 && <p class="muted">{text.none}</p>}
      <ul class="rows" data-testid="tokens">
        {tokens.data?.items.map((token) => (
          <TokenRow
            key={token.id}
            token={token}
            accountId={accountId}
            onRevoked={() => onRevoked(token.id)}
          />
        ))}
      </ul>
      {made && <NewTokenNote token={made} onDismiss={() => setMade(null)} />}
      <NewTokenForm accountId={accountId} onMade={onMade} />
    </>
  );
}
