import { dateTime, percent, period, span } from "../format";
import { messages } from "../i18n";
import { now } from "../state/clock";
import type { Standby } from "../types";
import { Countdown } from "./Countdown";
import { Icon } from "./Icon";

/** Why a running workspace is still running, and when it will pause. */
export function StandbyStatus({ standby }: { standby: Standby }) {
  if (standby.code === "idle" && standby.at)
    return <Countdown deadline={{ kind: "standby", at: standby.at }} />;
  return (
    <p class="status" data-testid="standby">
      <Icon name="extend" />
      <span>{standbySentence(standby, now.value)}</span>
    </p>
  );
}

/** The sentence of the API (`standby.reason`) in the chosen language. */
export function standbySentence(standby: Standby, nowMilliseconds: number): string {
  const text = messages.value.standby;
  const at = (moment: string | null) => (moment ? dateTime(moment) : "");
  const ttl = period(standby.ttl_seconds);
  switch (standby.code) {
    case "never":
      return text.never;
    case "idle":
      return standby.at
        ? messages.value.card.standbyIn(span((Date.parse(standby.at) - nowMilliseconds) / 1000))
        : text.never;
    case "command":
      return [
        text.command(standby.commands, at(standby.since), ttl),
        standby.not_before ? text.notBefore(at(standby.not_before)) : "",
        standby.at ? text.atTheLatest(at(standby.at)) : "",
        standby.cpu_percent === null ? "" : text.cpuToo,
      ]
        .filter(Boolean)
        .join(" ");
    case "cpu":
      return [
        text.cpu(
          percent(standby.cpu_percent ?? 0),
          percent(standby.cpu_above_percent ?? 0),
          at(standby.since),
          ttl,
        ),
        standby.at ? text.atTheLatest(at(standby.at)) : "",
        standby.commands ? text.commandsToo(standby.commands) : "",
      ]
        .filter(Boolean)
        .join(" ");
    case "lease":
      return [
        text.lease(at(standby.until), standby.lease_reason ?? ""),
        standby.commands ? text.commandsToo(standby.commands) : "",
        standby.at ? text.pausesAt(at(standby.at)) : "",
      ]
        .filter(Boolean)
        .join(" ");
    case "kept":
      return text.kept(at(standby.until));
    case "limit":
      return text.limit(at(standby.since), at(standby.until), at(standby.at));
  }
}
