import { messages } from "../i18n";
import { workspaces } from "../state/live";

interface Props {
  /** The ids of the chosen workspaces, or null for all. */
  chosen: string[] | null;
  onChange: (ids: string[] | null) => void;
}

/** The choice of the workspaces that a token is bound to. */
export function WorkspaceChoice({ chosen, onChange }: Props) {
  const text = messages.value.tokens;
  const toggle = (id: string, isChosen: boolean) => {
    const others = (chosen ?? []).filter((other) => other !== id);
    onChange(isChosen ? [...others, id] : others);
  };
  if (workspaces.value.size === 0) return null;
  return (
    <fieldset>
      <legend>{text.workspaces}</legend>
      <label class="choice">
        <input
          type="checkbox"
          checked={chosen === null}
          data-testid="token-all-workspaces"
          onChange={(event) => onChange(event.currentTarget.checked ? null : [])}
        />
        {text.allWorkspaces}
      </label>
      {chosen !== null &&
        [...workspaces.value.values()].map((workspace) => (
          <label key={workspace.id} class="choice">
            <input
              type="checkbox"
              checked={chosen.includes(workspace.id)}
              onChange={(event) => toggle(workspace.id, event.currentTarget.checked)}
            />
            {workspace.name}
          </label>
        ))}
    </fieldset>
  );
}
