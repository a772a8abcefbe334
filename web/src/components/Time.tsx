import { dateTime, exactTime, relative } from "../format";
import { now } from "../state/clock";

interface Props {
  at: string;
  as: "relative" | "full" | "exact";
}

export function Time({ at, as }: Props) {
  const full = dateTime(at);
  const text = as === "relative" ? relative(at, now.value) : as === "exact" ? exactTime(at) : full;
  return (
    <time dateTime={at} title={full}>
      {text}
    </time>
  );
}
