import { span } from "../format";
import { messages } from "../i18n";
import { Field } from "./Field";

const CHOICES: Record<"standby" | "archive", readonly number[]> = {
  standby: [600, 1_800, 3_600, 10_800, 28_800, 86_400],
  archive: [1_800, 3_600, 86_400, 604_800, 2_592_000],
};

interface Props {
  kind: "standby" | "archive";
  label: string;
  /** Seconds as text. Empty means the installation's default, "0" means never. */
  value: string;
  defaultSeconds: number;
  onChange: (value: string) => void;
}

export function TtlSelect({ kind, label, value, defaultSeconds, onChange }: Props) {
  const text = messages.value.ttl;
  const seconds = Number(value);
  const choices = new Set(CHOICES[kind]);
  if (value !== "" && seconds > 0) choices.add(seconds);
  return (
    <Field label={label}>
      {(ids) => (
        <select {...ids} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
          <option value="">
            {defaultSeconds > 0 ? text.byDefault(span(defaultSeconds)) : text.defaultNever}
          </option>
          {[...choices]
            .sort((a, b) => a - b)
            .map((choice) => (
              <option key={choice} value={String(choice)}>
                {span(choice)}
              </option>
            ))}
          <option value="0">{text.never}</option>
        </select>
      )}
    </Field>
  );
}

export const ttlFromText = (value: string): number | null => (value === "" ? null : Number(value));
export const ttlToText = (seconds: number | null): string => (seconds === null ? "" : String(seconds));
