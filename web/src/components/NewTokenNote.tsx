import { useRef, useState } from "preact/hooks";

import { messages } from "../i18n";
import type { MadeToken } from "../types";

interface Props {
  token: MadeToken;
  onDismiss: () => void;
}

/** A token that was just made. Its secret is in this page only, until the note is dismissed. */
export function NewTokenNote({ token, onDismiss }: Props) {
  const text = messages.value.tokens;
  const field = useRef<HTMLInputElement>(null);
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    field.current!.select();
    // Without https there is no clipboard, and the selected text can be copied by hand.
    await navigator.clipboard?.writeText(token.token);
    setCopied(navigator.clipboard !== undefined);
  };
  return (
    <div class="note note-good" role="status" data-testid="new-token">
      <div class="token-note">
        <p>
          <strong>{text.made(token.name)}</strong> {text.once}
        </p>
        <input
          ref={field}
          type="text"
          readOnly
          aria-label={text.secret}
          data-testid="token-secret"
          value={token.token}
          onFocus={(event) => event.currentTarget.select()}
        />
        <p>
          <button type="button" class="button" data-testid="token-copy" onClick={() => void copy()}>
            {copied ? text.copied : text.copy}
          </button>{" "}
          <button type="button" class="button" onClick={onDismiss}>
            {text.dismiss}
          </button>
        </p>
      </div>
    </div>
  );
}
