import { date, dateTime, relative } from "../format";
import { now } from "../state/clock";

interface Props {
  at: string;
  as: "relative" | "date" | "full";
}

export function Time({ at, as }: Props) {
  const full = dateTime(at);
  const text = as === "relative" ? relative(at, now.value) : as === "date" ? date(at) : full;
  return (
    <time dateTime={at} title={full}>
      {text}
    </time>
  );
}
