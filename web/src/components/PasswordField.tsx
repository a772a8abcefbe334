import { messages } from "../i18n";
import { Field } from "./Field";

interface Props {
  label: string;
  value: string;
  onInput: (value: string) => void;
  isNew?: boolean;
  isRepeated?: boolean;
  testId: string;
}

export function PasswordField({ label, value, onInput, isNew = false, isRepeated = false, testId }: Props) {
  return (
    <Field label={label} hint={isNew && !isRepeated ? messages.value.account.rule : undefined}>
      {(ids) => (
        <input
          {...ids}
          type="password"
          required
          {...(isNew ? { minLength: 8, maxLength: 1024 } : {})}
          autoComplete={isNew ? "new-password" : "current-password"}
          data-testid={testId}
          value={value}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}
