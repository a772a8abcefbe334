import { messages } from "../i18n";
import type { Phase } from "../types";
import { Icon, type IconName } from "./Icon";

const ICONS: Record<Phase, IconName> = {
  RUNNING: "running",
  STANDBY: "standby",
  ARCHIVED: "archive",
  PENDING: "pending",
  ERROR: "alert",
  DELETING: "delete",
  DELETED: "delete",
};

/** Shows the phase by colour, shape and word, so that colour is not the only sign. */
export function PhaseChip({ phase }: { phase: Phase }) {
  return (
    <span class={`chip chip-${phase.toLowerCase()}`}>
      <Icon name={ICONS[phase]} />
      {messages.value.phases[phase]}
    </span>
  );
}
