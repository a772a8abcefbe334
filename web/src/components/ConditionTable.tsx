import { messages } from "../i18n";
import type { Condition } from "../types";
import { Icon } from "./Icon";
import { Time } from "./Time";

export function ConditionTable({ conditions }: { conditions: Record<string, Condition> }) {
  const names: Record<string, string> = messages.value.conditions;
  const known = Object.keys(names);
  const order = (name: string) => (known.includes(name) ? known.indexOf(name) : known.length);
  const entries = Object.entries(conditions).sort(([a], [b]) => order(a) - order(b));
  return (
    <ul class="conditions">
      {entries.map(([name, condition]) => (
        <li key={name}>
          <ConditionRow name={names[name] ?? name} technicalName={name} condition={condition} />
        </li>
      ))}
    </ul>
  );
}

interface RowProps {
  name: string;
  technicalName: string;
  condition: Condition;
}

function ConditionRow({ name, technicalName, condition }: RowProps) {
  const text = messages.value.detail;
  const holds = condition.status === "True";
  return (
    <>
      <p class="condition-name" title={technicalName}>
        {name}
        <span class={holds ? "mark mark-yes" : "mark"}>
          <Icon name={holds ? "check" : "close"} />
          {holds ? text.yes : text.no}
        </span>
      </p>
      <p class="hint">
        {condition.reason}
        {" · "}
        <Time at={condition.last_transition_time} as="relative" />
      </p>
      {condition.message && <p class="hint">{condition.message}</p>}
    </>
  );
}
