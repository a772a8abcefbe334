import { messages } from "../i18n";
import type { Confirmation } from "../state/confirmation";
import { PasswordField } from "./PasswordField";

/** The field for the user's own password. It appears once the API has asked for it. */
export function ConfirmationField({ confirmation, testId }: { confirmation: Confirmation; testId: string }) {
  if (!confirmation.isNeeded) return null;
  return (
    <PasswordField
      label={messages.value.admin.yourPassword}
      value={confirmation.password}
      onInput={confirmation.setPassword}
      testId={testId}
    />
  );
}
