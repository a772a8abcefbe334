import { span } from "../format";
import { messages } from "../i18n";
import { now } from "../state/clock";
import type { Deadline } from "../workspace";
import { Icon } from "./Icon";

export function Countdown({ deadline }: { deadline: Deadline }) {
  const text = messages.value.card;
  const seconds = (Date.parse(deadline.at) - now.value) / 1000;
  const sentence = deadline.kind === "standby" ? text.standbyIn : text.archiveIn;
  return (
    <p class={seconds < 120 ? "status status-soon" : "status"} role="timer" aria-live="off">
      <Icon name="extend" />
      {seconds > 0 ? sentence(span(seconds)) : text.due[deadline.kind]}
    </p>
  );
}
