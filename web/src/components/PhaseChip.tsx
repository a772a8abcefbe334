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

/** Colour, shape and word: none of them alone. */
export function PhaseChip({ phase }: { phase: Phase }) {
  return (
    <span class={`chip chip-${phase.toLowerCase()}`}>
      <Icon name={ICONS[phase]} />
      {messages.value.phases[phase]}
    </span>
  );
}
