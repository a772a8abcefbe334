import { messages } from "../i18n";
import type { Scope } from "../types";

interface Props {
  offered: Scope[];
  chosen: Scope[];
  onChange: (scopes: Scope[]) => void;
}

export function ScopeChoice({ offered, chosen, onChange }: Props) {
  const text = messages.value.tokens;
  const toggle = (scope: Scope, isChosen: boolean) =>
    onChange(offered.filter((other) => (other === scope ? isChosen : chosen.includes(other))));
  return (
    <fieldset>
      <legend>{text.permits}</legend>
      {offered.map((scope) => (
        <label key={scope} class="choice">
          <input
            type="checkbox"
            checked={chosen.includes(scope)}
            data-testid={`scope-${scope}`}
            onChange={(event) => toggle(scope, event.currentTarget.checked)}
          />
          <span>
            {text.scopes[scope]}
            <span class="hint"> {text.scopeHints[scope]}</span>
          </span>
        </label>
      ))}
    </fieldset>
  );
}
