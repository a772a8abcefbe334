import { api } from "../api";
import { AdminTabs } from "../components/AdminTabs";
import { ErrorNote } from "../components/ErrorNote";
import { Icon } from "../components/Icon";
import { PageTitle } from "../components/PageTitle";
import { PhaseChip } from "../components/PhaseChip";
import { SentenceWithTime } from "../components/WorkspaceStatus";
import { messages } from "../i18n";
import { en } from "../i18n/en";
import { useLoader } from "../state/loader";
import type { Check, CheckName, Overview, Workspace } from "../types";
import { PHASES } from "../workspace";

const POLL_MILLISECONDS = 5_000;
const CHECKS = Object.keys(en.admin.checks) as CheckName[];

export function AdminOverviewPage() {
  const text = messages.value.admin;
  const overview = useLoader("overview", api.overview, POLL_MILLISECONDS);
  return (
    <>
      <PageTitle title={text.overview} />
      <AdminTabs />
      <ErrorNote error={overview.error} />
      {overview.data && <Figures overview={overview.data} />}
    </>
  );
}

function SecurityNote({ testId, message }: { testId: string; message: string }) {
  return (
    <div class="note note-error" role="note" data-testid={testId}>
      <Icon name="alert" />
      <p>{message}</p>
    </div>
  );
}

function Figures({ overview }: { overview: Overview }) {
  const text = messages.value.admin;
  return (
    <>
      {overview.insecure_http && <SecurityNote testId="insecure-http" message={text.insecureHttp} />}
      {overview.wide_trusted_proxies && <SecurityNote testId="wide-proxies" message={text.wideProxies} />}
      <dl class="figures">
        <div class="panel">
          <dt>{text.running}</dt>
          <dd>{text.runningOf(overview.running, overview.limits.max_running_global)}</dd>
        </div>
        <div class="panel">
          <dt>{text.userCount}</dt>
          <dd>{overview.users}</dd>
        </div>
        <div class="panel">
          <dt>{text.coordinator}</dt>
          <dd class="small">
            <LeaderFact leader={overview.leader} />
          </dd>
        </div>
      </dl>
      <HealthChecks checks={overview.checks} />
      <section class="panel">
        <h2>{text.phases}</h2>
        <ul class="phase-counts">
          {PHASES.map((phase) => (
            <li key={phase}>
              <PhaseChip phase={phase} />
              {overview.phases[phase] ?? 0}
            </li>
          ))}
        </ul>
      </section>
      <section class="panel">
        <h2>{text.errors}</h2>
        {overview.errors.length === 0 && <p class="muted">{text.noErrors}</p>}
        <ul class="rows">
          {overview.errors.map((workspace) => (
            <ErrorRow key={workspace.id} workspace={workspace} />
          ))}
        </ul>
      </section>
    </>
  );
}

function HealthChecks({ checks }: { checks: Overview["checks"] }) {
  const text = messages.value.admin;
  const known = CHECKS.flatMap((name) => (checks[name] ? [{ name, check: checks[name] }] : []));
  const passing = known.filter(({ check }) => check.ok);
  const rows = (shown: typeof known) => (
    <ul class="rows">
      {shown.map(({ name, check }) => (
        <CheckRow key={name} name={name} check={check} />
      ))}
    </ul>
  );
  return (
    <section class="panel" data-testid="health">
      <h2>{text.health}</h2>
      {passing.length === known.length ? (
        <p>{text.allHealthy(known.length)}</p>
      ) : (
        rows(known.filter(({ check }) => !check.ok))
      )}
      <details>
        <summary>{text.showChecks}</summary>
        {rows(passing)}
      </details>
    </section>
  );
}

function CheckRow({ name, check }: { name: CheckName; check: Check }) {
  const text = messages.value.admin;
  return (
    <li class="row" data-testid={`check-${name}`}>
      <div class="row-text">
        <p class="row-title">
          {text.checks[name]}
          <span class={check.ok ? "muted" : "check-failing"}>{check.ok ? text.healthy : text.failing}</span>
        </p>
        <p class="hint">{check.message}</p>
        {!check.ok && <p>{text.remedies[name]}</p>}
      </div>
    </li>
  );
}

function LeaderFact({ leader }: { leader: Overview["leader"] }) {
  if (!leader) return <>{messages.value.admin.noLeader}</>;
  return (
    <>
      <span title={leader.holder}>{messages.value.admin.leads}</span>
      {leader.heartbeat_at && (
        <span class="hint">
          <SentenceWithTime
            sentence={messages.value.admin.heartbeat}
            at={leader.heartbeat_at}
            as="relative"
          />
        </span>
      )}
    </>
  );
}

function ErrorRow({ workspace }: { workspace: Workspace }) {
  return (
    <li class="row">
      <div class="row-text">
        <p class="row-title">
          <a href={`/workspaces/${workspace.id}`}>{workspace.name}</a>
          <span class="muted">{workspace.owner.username}</span>
        </p>
        <p class="hint">{workspace.error_message ?? workspace.error_reason}</p>
      </div>
    </li>
  );
}
