import { api } from "../api";
import { bytes, count, percent, relative } from "../format";
import { messages } from "../i18n";
import { now } from "../state/clock";
import { useLoader } from "../state/loader";
import type { Stats as StatsData, Workspace } from "../types";
import { ErrorNote } from "./ErrorNote";

const POLL_MILLISECONDS = 30_000;

/** What a running workspace uses now. */
export function Stats({ workspace }: { workspace: Workspace }) {
  const text = messages.value.stats;
  const stats = useLoader(workspace.id, (signal) => api.stats(workspace.id, signal), POLL_MILLISECONDS);
  return (
    <section class="panel" data-testid="stats">
      <h2>{text.title}</h2>
      <ErrorNote error={stats.error} />
      {stats.data && <StatsFacts stats={stats.data} />}
    </section>
  );
}

export function StatsFacts({ stats }: { stats: StatsData }) {
  const text = messages.value.stats;
  const { cpu, memory, processes, home } = stats;
  const reasons = new Set([cpu, memory, processes, home].map((part) => part.reason).filter(Boolean));
  return (
    <>
      <dl class="facts">
        <dt>{text.cpu}</dt>
        <dd>{cpuText(cpu)}</dd>
        <dt>{text.memory}</dt>
        <dd>{usedOf(memory.used_bytes, memory.limit_bytes, bytes)}</dd>
        <dt>{text.processes}</dt>
        <dd>{usedOf(processes.count, processes.limit, count)}</dd>
        <dt>{text.home}</dt>
        <dd>{homeText(home)}</dd>
      </dl>
      {stats.measured_at && <p class="hint">{text.measured(relative(stats.measured_at, now.value))}</p>}
      {[...reasons].map((reason) => (
        <p key={reason} class="hint" lang="en">
          {reason}
        </p>
      ))}
    </>
  );
}

function cpuText({ percent: used, average_percent: average, cores }: StatsData["cpu"]): string {
  const text = messages.value.stats;
  if (used === null) return text.unknown;
  const present =
    cores === null
      ? text.cpuUncapped(percent(used))
      : text.cpuOf(percent(used), text.cores(cores, count(cores)));
  return average === null ? present : `${present}; ${text.cpuAverage(percent(average))}`;
}

function usedOf(used: number | null, limit: number | null, format: (value: number) => string): string {
  const text = messages.value.stats;
  if (used === null) return text.unknown;
  return limit === null ? format(used) : text.of(format(used), format(limit));
}

function homeText({ bytes: used, free_bytes: free, complete }: StatsData["home"]): string {
  const { stats: text, detail } = messages.value;
  if (used === null) return text.unknown;
  const size = complete ? bytes(used) : detail.atLeast(bytes(used));
  return free === null ? size : `${size}, ${text.free(bytes(free))}`;
}
